package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Deferred jobs: whatever the queue is, it calls WorkJob, and WorkJob is the one place where a job's end is logged and
// counted. What a job does is in the file of the worker it belongs to.

// Outcomes of a job (spec/README.md section 4); a job that returned an error is failed, or discarded by the queue.
const (
	JobSucceeded = "succeeded"
	JobSkipped   = "skipped"
	JobRefused   = "refused"
	JobRestored  = "restored"
	JobFailed    = "failed"
	JobDiscarded = "discarded"
)

// jobSlice is how long an attempt works before it snoozes and goes on later (spec/README.md section 4).
const jobSlice = 45 * time.Second

// JobRequest is a job that the queue hands over.
type JobRequest struct {
	ID                   int64
	Kind                 string
	Args                 json.RawMessage
	Attempt, MaxAttempts int
	// RunID is the run that queued it, "" if none did.
	RunID string
}

// JobResult is how an attempt ended.
type JobResult struct {
	// Outcome is one of the constants above; empty with Snooze.
	Outcome string
	// Reason is typed: TARGET_GONE and so on.
	Reason string
	// Snooze puts the job back for so long without using up an attempt.
	Snooze time.Duration
	// Quiet ends are logged at debug.
	Quiet bool
	// Attributes are added to the job's log line: user_id, group_id, counts.
	Attributes []any
}

// jobWork does an attempt of one kind of job. args are decoded by it.
type jobWork func(ctx context.Context, j *jobExecution) (JobResult, error)

// jobExecution is an attempt at work.
type jobExecution struct {
	JobRequest
	Log     *slog.Logger
	started time.Time
}

// Left is the time until the attempt must snooze.
func (j *jobExecution) Left() time.Duration { return jobSlice - time.Since(j.started) }

// decode reads the job's arguments.
func decode[T repo.JobArgs](j *jobExecution) (args T, err error) {
	if err = json.Unmarshal(j.Args, &args); err != nil {
		err = fmt.Errorf("arguments of job %d: %w", j.ID, err)
	}
	return args, err
}

// WorkJob does one attempt of a job. An error is to be retried by the queue with back-off.
func (s *Service) WorkJob(ctx context.Context, r JobRequest) (JobResult, error) {
	work := s.jobs[r.Kind]
	if work == nil {
		return JobResult{}, fmt.Errorf("job %d: this version of caretaker knows no kind %q", r.ID, r.Kind)
	}
	j := &jobExecution{JobRequest: r, Log: s.logger.With("kind", r.Kind, "job_id", r.ID), started: time.Now()}
	result, err := work(ctx, j)
	s.reportJob(ctx, j, result, err)
	return result, err
}

// reportJob is the job's one log line and its metric.
func (s *Service) reportJob(ctx context.Context, j *jobExecution, r JobResult, err error) {
	level, outcome := slog.LevelInfo, r.Outcome
	switch {
	case err != nil && j.Attempt >= j.MaxAttempts:
		level, outcome = slog.LevelError, JobDiscarded
	case err != nil:
		level, outcome = slog.LevelError, JobFailed
	case r.Snooze > 0 || r.Quiet:
		level = slog.LevelDebug
	case outcome == JobRefused:
		level = slog.LevelWarn
	}
	attrs := append([]any{"outcome", outcome, "reason", r.Reason, "attempt", j.Attempt, "run_id", j.RunID,
		"duration_seconds", time.Since(j.started).Seconds()}, r.Attributes...)
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	if r.Snooze > 0 {
		j.Log.Log(ctx, level, "job snoozed", append(attrs, "snooze", r.Snooze.String())...)
		return
	}
	j.Log.Log(ctx, level, "job finished", attrs...)
	s.metrics.addJob(ctx, j.Kind, outcome)
}

// PublicJobError is a job's error in words fit for clients and for the queue's table.
func PublicJobError(err error) error { return errors.New(publicText(err)) }
