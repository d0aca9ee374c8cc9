package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// workshop is a service whose one kind of job, "test", does what the test reports. It never
// connects.
type workshop struct {
	*Service
	log    bytes.Buffer
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newWorkshop(t *testing.T, work job.Work) *workshop {
	t.Helper()
	main, err := repo.Open(context.Background(), "main", "postgres://127.0.0.1:1/main")
	assert.NoError(t, err)
	t.Cleanup(main.Close)
	w := &workshop{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	c := Config{
		Databases: []*repo.Database{main},
		Logger:    slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	config.Defaults(&c)
	w.Service, err = New(c)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = w.Shutdown(context.Background()) })
	w.Kinds["test"] = job.Kind{Work: work}
	// The test has no main: nothing is paused for as long as the test lasts.
	w.Pauses.TriedAt = time.Now().Add(time.Hour)
	w.Pauses.ReadAt = w.Pauses.TriedAt
	w.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)).Tracer("test")
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)).Meter("test")
	if w.Metrics.Jobs, err = meter.Int64Counter("maintenance.jobs"); err != nil {
		t.Fatal(err)
	}
	return w
}

// line is the one line of the log.
func (w *workshop) line(t *testing.T) map[string]any {
	t.Helper()
	line := map[string]any{}
	if err := json.Unmarshal(w.log.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, w.log.String())
	}
	return line
}

// counted is the metric as "kind outcome=n".
func (w *workshop) counted(t *testing.T) (out string) {
	t.Helper()
	var data metricdata.ResourceMetrics
	assert.NoError(t, w.reader.Collect(context.Background(), &data))
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, _ := m.Data.(metricdata.Sum[int64])
			for _, p := range sum.DataPoints {
				kind, _ := p.Attributes.Value("kind")
				outcome, _ := p.Attributes.Value("outcome")
				out += fmt.Sprintf("%s %s=%d", kind.AsString(), outcome.AsString(), p.Value)
			}
		}
	}
	return out
}

// jobEnd is what an attempt does, and how its end is reported. The log has the level and the metric
// the count. Log and span have the other fields.
type jobEnd struct {
	work                            job.Work
	attempt                         int
	level, outcome, reason, counted string
}

// said is an attribute of every result.
const said = "of the result"

// jobEnds are all ways in which an attempt ends.
func jobEnds() map[string]jobEnd {
	ends := func(r job.Result, err error) job.Work {
		r.Attributes = []any{"note", said}
		return func(context.Context, *job.Attempt) (job.Result, error) { return r, err }
	}
	postponed := func(err error) job.Work {
		return func(_ context.Context, j *job.Attempt) (job.Result, error) {
			return j.Postpone(job.Result{Attributes: []any{"note", said}}, fmt.Errorf("step: %w", err))
		}
	}
	lost, refused := fmt.Errorf("step: %w", dberr.ErrJobLost), &fault.ReasonedError{Reason: reasons.InternalUser, Text: "no"}
	return map[string]jobEnd{
		"succeeded":        {ends(job.Result{Outcome: job.Succeeded}, nil), 1, "INFO", "succeeded", "", "succeeded"},
		"skipped":          {ends(job.Result{Outcome: job.Skipped, Reason: "SETTING_OFF"}, nil), 1, "INFO", "skipped", "SETTING_OFF", "skipped"},
		"skipped quietly":  {ends(job.Result{Outcome: job.Skipped, Reason: "TARGET_GONE", LogAtDebug: true}, nil), 1, "DEBUG", "skipped", "TARGET_GONE", "skipped"},
		"refused":          {ends(job.Result{Outcome: job.Refused, Reason: "INTERNAL_USER"}, nil), 1, "WARN", "refused", "INTERNAL_USER", "refused"},
		"restored":         {ends(job.Result{Outcome: job.Restored, Reason: "RIGHTS_MISSING"}, nil), 1, "INFO", "restored", "RIGHTS_MISSING", "restored"},
		"failed":           {ends(job.Result{}, errors.New("no")), 24, "ERROR", "failed", "", "failed"},
		"failed, typed":    {ends(job.Result{}, fmt.Errorf("step: %w", refused)), 1, "ERROR", "failed", "INTERNAL_USER", "failed"},
		"failed at last":   {ends(job.Result{}, errors.New("no")), 25, "ERROR", "discarded", "", "discarded"},
		"failed once more": {ends(job.Result{}, errors.New("no")), 26, "ERROR", "discarded", "", "discarded"},
		"snoozed":          {ends(job.Result{Snooze: time.Second}, nil), 1, "DEBUG", "snoozed", "", ""},
		"snoozed at last":  {ends(job.Result{Snooze: time.Second}, nil), 25, "DEBUG", "snoozed", "", ""},
		"interrupted":      {ends(job.Result{}, fmt.Errorf("step: %w", context.Canceled)), 25, "DEBUG", "interrupted", "INTERRUPTED", ""},
		"lost":             {ends(job.Result{}, lost), 1, "WARN", "lost", "JOB_LOST", ""},
		"slice over":       {postponed(job.ErrSliceOver), 1, "DEBUG", "snoozed", "SLICE_USED", ""},
		"shutdown":         {postponed(job.ErrSliceOver), 1, "DEBUG", "snoozed", "SHUTDOWN", ""},
		"busy":             {postponed(dberr.ErrBusy), 1, "DEBUG", "snoozed", "TARGET_BUSY", ""},
	}
}

func TestWorkJob_EndIsLoggedOnceCountedAndTraced(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	close(stopping)
	for name, c := range jobEnds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			w := newWorkshop(t, func(ctx context.Context, j *job.Attempt) (job.Result, error) {
				if name == "interrupted" {
					cancel()
				}
				return c.work(ctx, j)
			})
			r := job.Request{
				ID: 3, Kind: "test", Attempt: c.attempt, MaxAttempts: 25, RunID: "r",
				Args: json.RawMessage(`{"user_id": 7, "deleted_by_id": null, "reason": "x"}`),
			}
			if name == "shutdown" {
				r.Stopping = stopping
			}
			result, err := w.WorkJob(ctx, r)
			failed := c.level == "ERROR"
			notDone := failed || name == "interrupted" || name == "lost"
			assert.That(t, (err != nil) == notDone && (result.Snooze > 0) == (c.outcome == "snoozed"), "%+v, %v", result, err)
			line := w.line(t)
			for key, want := range map[string]any{
				"level": c.level, "outcome": c.outcome, "reason": c.reason, "kind": "test", "job_id": 3.0, "user_id": 7.0, "run_id": "r", "note": said,
			} {
				assert.That(t, line[key] == want, "%s is %v, want %v", key, line[key], want)
			}
			want := ""
			if c.counted != "" {
				want = "test " + c.counted + "=1"
			}
			assert.Equal(t, w.counted(t), want, "counted")
			span := w.spans.Ended()[0]
			attributes := attribute.NewSet(span.Attributes()...)
			for key, want := range map[string]string{"maintenance.outcome": c.outcome, "maintenance.reason": c.reason, "maintenance.user_id": "7"} {
				if v, has := attributes.Value(attribute.Key(key)); has != (want != "") || has && v.String() != want {
					t.Errorf("%s is %q, want %q", key, v.String(), want)
				}
			}
			if isError := span.Status().Code.String() == "Error"; isError != (failed || name == "lost") {
				t.Errorf("status %+v", span.Status())
			}
		})
	}
}

func TestWorkJob_PanicIsAFailureThatKnowsItsStack(t *testing.T) {
	t.Parallel()
	w := newWorkshop(t, func(context.Context, *job.Attempt) (job.Result, error) { panic("secret of row 5") })
	_, err := w.WorkJob(context.Background(), job.Request{ID: 3, Kind: "test", Attempt: 1, MaxAttempts: 25})
	assert.That(t, err != nil && !strings.Contains(job.PublicError(err).Error(), "secret"), "got %v", err)
	if text, _ := w.line(t)["error"].(string); !strings.Contains(text, "secret of row 5") {
		t.Errorf("logged %s", text)
	}
	panicked, _ := errors.AsType[*fault.PanicError](err)
	where := ""
	for frames := runtime.CallersFrames(panicked.Callers()); !strings.Contains(where, "internal_test.go"); {
		frame, more := frames.Next()
		if where += frame.File + "\n"; !more {
			t.Fatalf("the stack does not show where it was: %s", where)
		}
	}
}

// The text of a statement that a database has refused may have values of rows.
func TestWorkJob_LogLacksTheDriversTextAlsoIfMainGoesAwayAfterwards(t *testing.T) {
	t.Parallel()
	refused, away := &dberr.Error{Operation: "delete", Database: "main", SQLState: "23505"}, &dberr.Error{Operation: "note", Database: "main"}
	w := newWorkshop(t, func(context.Context, *job.Attempt) (job.Result, error) {
		return job.Result{}, errors.Join(refused, away)
	})
	_, err := w.WorkJob(context.Background(), job.Request{ID: 3, Kind: "test", Attempt: 1, MaxAttempts: 25})
	assert.That(t, errors.Is(err, dberr.ErrUnreachable), "got %v", err)
	assert.Equal(t, w.line(t)["error"], any(refused.Public()+"\n"+away.Error()), "logged")
}

func TestWorkJob_TraceOfItsOwnIsLinkedToTheSpanThatQueuedIt(t *testing.T) {
	t.Parallel()
	var queued jobqueue.Job
	stopping := make(chan struct{})
	w := newWorkshop(t, func(ctx context.Context, j *job.Attempt) (job.Result, error) {
		queued = j.Origin(ctx)
		// No time is left when the process stops.
		if left := j.Left(); left <= 0 || left > job.JobSlice {
			t.Errorf("%s left at the beginning", left)
		}
		close(stopping)
		if left := j.Left(); left > 0 {
			t.Errorf("%s left when the process stops", left)
		}
		return job.Result{Outcome: job.Refused, Reason: "NOT_AUTHORIZED"}, nil
	})
	ctx, record := w.Tracer.Start(context.Background(), "maintenance.run")
	parent := spans.TraceParent(ctx)
	record.End()
	result := assert.Must(w.WorkJob(ctx, job.Request{ID: 3, Kind: "test", RunID: "r", TraceParent: parent, Stopping: stopping}))(t)
	span := w.spans.Ended()[1]
	assert.That(t, result.TraceID == span.SpanContext().TraceID().String(), "the trace is said to be %q", result.TraceID)
	links := span.Links()
	assert.That(t, span.Name() == "maintenance.job" && len(links) == 1 && links[0].SpanContext.Equal(record.SpanContext().WithRemote(true)),
		"%s is linked to %v", span.Name(), links)
	assert.That(t, span.SpanContext().TraceID() != record.SpanContext().TraceID() &&
		!span.Parent().IsValid(), "the job is in the run's trace")
	for _, want := range []string{"maintenance.outcome=refused", "maintenance.reason=NOT_AUTHORIZED", "maintenance.run_id=r"} {
		key, value, _ := strings.Cut(want, "=")
		assert.That(t, slices.Contains(span.Attributes(), attribute.String(key, value)), "%v, want %s", span.Attributes(), want)
	}
	if queued.RunID != "r" || !strings.Contains(queued.TraceParent, span.SpanContext().SpanID().String()) {
		t.Errorf("a job that it queues is of %+v", queued)
	}
}

func TestCatchUp_IsOnForDailyWorkersUnlessConfigured(t *testing.T) {
	d := assert.Must(repo.Open(context.Background(), "main", "postgres://nowhere"))(t)
	defer d.Close()
	c := Config{Databases: []*repo.Database{d}}
	config.Defaults(&c)
	s := assert.Must(New(c))(t)
	defer func() { _ = s.Shutdown(context.Background()) }()
	for _, w := range s.Workers {
		daily := w.Config.Schedule[0] == '0'
		assert.That(t, w.CatchesUp() == daily, "%s (%s) catches up: %t", w.Name, w.Config.Schedule, !daily)
		w.Config.CatchUp = new(!daily)
		assert.That(t, w.CatchesUp() != daily, "%s does not do as it is configured", w.Name)
	}
}
