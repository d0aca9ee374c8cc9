package pg

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// statementTimes measures statements: their duration and their errors. The labels are few:
// database, and the worker or kind of job of the statement, "other" for bookkeeping. Overhead is
// not measured.
type statementTimes struct {
	// database is the value of the label database.
	database string
	// duration is in seconds. errors counts failed statements by class.
	duration metric.Float64Histogram
	errors   metric.Int64Counter
	recent   recentTimes
}

// newStatementTimes registers the metrics of one database. Each class of errors starts at 0, so
// that a rate includes the first error.
func newStatementTimes(ctx context.Context, name string) (*statementTimes, error) {
	meter := otel.Meter("github.com/caretaker-go/caretaker/repo")
	duration, err := meter.Float64Histogram("maintenance.statement.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of SQL statements, by purpose."),
		metric.WithExplicitBucketBoundaries(.01, .05, .25, 1))
	if err != nil {
		return nil, err
	}
	failed, err := meter.Int64Counter("maintenance.statement.errors",
		metric.WithDescription("SQL statements that ended with an error, by error class."))
	if err != nil {
		return nil, err
	}
	t := &statementTimes{database: name, duration: duration, errors: failed}
	for _, class := range []dberr.Class{dberr.ClassData, dberr.ClassLock, dberr.ClassTimeout, dberr.ClassUnreachable, dberr.ClassSchema} {
		t.fail(ctx, class, 0)
	}
	return t, nil
}

// add counts a finished statement, unless it is overhead, whose start is zero. A cancelled
// statement does not count as an error, nor does one of [dberr.Ours].
func (t *statementTimes) add(ctx context.Context, began time.Time, err error) {
	if began.IsZero() {
		return
	}
	work, took := cmp.Or(spans.Work(ctx), "other"), time.Since(began) //nolint:forbidigo // measures
	t.recent.add(took)
	t.duration.Record(context.WithoutCancel(ctx), took.Seconds(),
		metric.WithAttributes(attribute.String("work", work), attribute.String("database", t.database)))
	if err != nil && !errors.Is(err, context.Canceled) && !dberr.Ours(asCondition(err)) {
		t.fail(context.WithoutCancel(ctx), (&dberr.Error{SQLState: dberr.SQLState(err)}).Class(), 1)
	}
}

// fail adds n errors of a class. 0 only creates the time series.
func (t *statementTimes) fail(ctx context.Context, c dberr.Class, n int64) {
	t.errors.Add(ctx, n, metric.WithAttributes(
		attribute.String("database", t.database), attribute.String("class", c.String())))
}
