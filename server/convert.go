package server

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/status"
)

// Prefixes of enum value names. A term of package service follows, in capitals.
const (
	statePrefix     = "RUN_STATE_"
	triggerPrefix   = "TRIGGER_"
	conditionPrefix = "CONDITION_"
	classPrefix     = "FAILURE_CLASS_"
	outcomePrefix   = "FIRE_OUTCOME_"
	jobStatePrefix  = "JOB_STATE_"
)

// enum returns the enum value for a term of package service, 0 for an unknown term.
func enum[E ~int32](values map[string]int32, prefix, word string) E {
	return E(values[prefix+strings.ToUpper(word)])
}

// toTime returns nil for a zero time.
func toTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Limits of a text, in bytes. Texts of runs and jobs have no limit of their own, because other
// versions or programs may have written their rows.
const wholeText, listText = 256 << 10, 2 << 10

// wholeRun converts a run with texts as long as an answer allows. listedRun converts a run of a
// list. Both return nil for nil.
func wholeRun(r *run.Run) *pb.Run { return toRun(r, wholeText, "see the table maintenance.runs") }

// listedRun converts a run for a list. Texts longer than listText bytes are cut and refer to
// GetRun.
func listedRun(r *run.Run) *pb.Run { return toRun(r, listText, "see the run") }

// toRun shortens texts to a number of bytes. source names the call that returns the full text.
func toRun(r *run.Run, most int, source string) *pb.Run {
	if r == nil {
		return nil
	}
	result := &pb.Run{
		Id: r.ID, Worker: r.Worker, Database: r.Database,
		Trigger:   enum[pb.Trigger](pb.Trigger_value, triggerPrefix, r.Trigger),
		State:     enum[pb.RunState](pb.RunState_value, statePrefix, r.State),
		Reason:    format.Shorten(r.Reason, most, source),
		Error:     format.Shorten(r.Error, most, source),
		DryRun:    r.DryRun,
		StartedAt: toTime(r.StartedAt), FinishedAt: toTime(r.FinishedAt),
		Counts: r.Counts, OverLimit: r.OverLimit, TurboMode: r.TurboMode,
		TraceId: r.TraceID, LeaseEpoch: r.LeaseEpoch, RequestedBy: r.RequestedBy, Replica: r.Replica,
		RequestId: r.RequestID,
	}
	for _, t := range r.Tables {
		result.Tables = append(result.Tables,
			&pb.TableCount{Table: t.Table, Deleted: t.Deleted, Updated: t.Updated})
	}
	for _, d := range r.Definitions {
		result.Definitions = append(result.Definitions, &pb.DefinitionCount{
			Table: d.Table, Column: d.Column, Parent: d.Parent, Action: d.Action,
			Rows: d.Rows, AtLeast: d.AtLeast,
		})
	}
	for _, c := range r.Candidates {
		result.Candidates = append(result.Candidates, &pb.Candidate{
			Kind: c.Kind, Id: c.ID, Name: c.Name, Action: c.Action, Reason: c.Reason,
		})
	}
	result.MoreCandidates, result.CandidatesDigest = r.MoreCandidates, r.CandidatesDigest
	return result
}

// toFire converts a fire for a list. late is missing unless its run has started.
func toFire(f *schedule.Fire) *pb.Fire {
	fire := &pb.Fire{
		Worker: f.Worker, FireTime: toTime(f.Time), RunId: f.RunID, ClaimedBy: f.ClaimedBy,
		Reason:    format.Shorten(f.Reason, listText, "see the table maintenance.fires"),
		Outcome:   enum[pb.FireOutcome](pb.FireOutcome_value, outcomePrefix, f.Outcome),
		ClaimedAt: toTime(f.ClaimedAt), StartedAt: toTime(f.StartedAt),
	}
	if !f.StartedAt.IsZero() {
		fire.Late = durationpb.New(f.Late())
	}
	return fire
}

// wholeJob converts a job with texts as long as an answer allows, listedJob a job of a list.
func wholeJob(j *job.Job) *pb.Job {
	job := toJob(j, wholeText/4, "see the table maintenance.river_job")
	for _, t := range j.Tables {
		job.Tables = append(job.Tables, &pb.TableCount{Table: t.Table, Deleted: t.Deleted, Updated: t.Updated})
	}
	if o := j.Outside; o.All > 0 {
		job.Outside = &pb.OutsideCount{Pending: o.Pending, All: o.All}
	}
	if c := j.Cancellation; c != nil {
		job.Cancellation = &pb.Cancellation{Reason: c.Reason, By: c.By, At: toTime(c.At)}
	}
	return job
}

// listedJob converts a job for a list. Texts longer than listText bytes are cut and refer to
// ListJobs.
func listedJob(j *job.Job) *pb.Job {
	return toJob(j, listText, "see the job")
}

// toJob shortens texts to a number of bytes. source names the call that returns the full text.
func toJob(j *job.Job, most int, source string) *pb.Job {
	job := &pb.Job{
		Id: j.ID, Kind: j.Kind, State: j.State, Args: &structpb.Struct{},
		JobState: enum[pb.JobState](pb.JobState_value, jobStatePrefix, j.State),
		Attempt:  int32(j.Attempt), MaxAttempts: int32(j.MaxAttempts), //nolint:gosec // smallint
		Outcome: j.Outcome, Reason: format.Shorten(j.Reason, most, source),
		RunId: j.RunID, TraceId: j.TraceID,
		CreatedAt: toTime(j.CreatedAt), ScheduledAt: toTime(j.ScheduledAt),
		AttemptedAt: toTime(j.AttemptedAt), FinalizedAt: toTime(j.FinalizedAt),
	}
	if j.Worked > 0 {
		job.Duration = durationpb.New(j.Worked)
	}
	for _, e := range j.Errors {
		job.Errors = append(job.Errors, &pb.JobError{
			At: toTime(e.At), Attempt: int32(e.Attempt), //nolint:gosec // smallint
			Error: format.Shorten(e.Error, most, source),
		})
	}
	// Other programs may write rows. Arguments that are not an object must not hide other rows.
	if job.GetArgs().UnmarshalJSON(j.Args) != nil {
		job.Args = &structpb.Struct{}
	}
	return job
}

// toLease converts a lease. Its worker is the part of the name before the slash.
func toLease(l *run.Lease) *pb.Lease {
	worker, _, _ := strings.Cut(l.Name, "/")
	return &pb.Lease{
		Name: l.Name, Worker: worker, Database: l.Database, Holder: l.Holder, Epoch: l.Epoch,
		AcquiredAt: toTime(l.AcquiredAt), RenewedAt: toTime(l.RenewedAt),
		ExpiresAt: toTime(l.ExpiresAt), Expired: l.Expired,
	}
}

// toStatus converts the status of a worker. An unknown backlog is missing, so that a client cannot
// mistake it for 0. Texts are cut for a list.
func toStatus(w status.Worker) *pb.WorkerStatus {
	status := &pb.WorkerStatus{
		Worker: w.Worker, Schedule: w.Schedule, NextRunAt: toTime(w.NextRunAt),
		CurrentRun: listedRun(w.CurrentRun), LastRun: listedRun(w.LastRun),
		LastSuccessAt:   toTime(w.LastSuccessAt),
		Condition:       enum[pb.Condition](pb.Condition_value, conditionPrefix, string(w.Condition)),
		ConditionDetail: format.Shorten(w.ConditionDetail, 4*listText, "see the server's log"),
	}
	if !w.BacklogUnknown {
		status.Backlog = toBacklog(w.Backlog)
	}
	if f := w.Failing; f != nil {
		status.Failing = &pb.Failing{
			Since: toTime(f.Since), Database: f.Database,
			Class:   enum[pb.FailureClass](pb.FailureClass_value, classPrefix, string(f.Class)),
			Message: format.Shorten(f.Message, listText, "see the run"),
		}
	}
	if p := w.Paused; p != nil {
		status.Paused = &pb.Pause{
			Reason: p.Reason, By: p.By, Since: toTime(p.Since), Until: toTime(p.Until),
		}
	}
	for i := range w.Leases {
		status.Leases = append(status.Leases, toLease(&w.Leases[i]))
	}
	for _, d := range w.Databases {
		there := &pb.DatabaseStatus{
			Database: d.Name, Problem: format.Shorten(d.Problem, listText, "see the run"),
		}
		if d.Known {
			there.Backlog = toBacklog(d.Backlog)
		}
		status.Databases = append(status.Databases, there)
	}
	return status
}

// toBacklog converts the figures of a backlog that is known.
func toBacklog(b status.Backlog) *pb.Backlog {
	return &pb.Backlog{
		Pending: b.Pending, OldestAt: toTime(b.OldestAt), Due: b.Due, Deferred: b.Deferred, Dead: b.Dead,
	}
}
