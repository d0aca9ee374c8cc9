package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// FailureClass is the kind of problem that keeps a worker from running.
type FailureClass string

// The classes, named as in the API.
const (
	FailureUnreachable FailureClass = "UNREACHABLE"
	FailureSchema      FailureClass = "SCHEMA"
	FailureLock        FailureClass = "LOCK"
	FailureTimeout     FailureClass = "TIMEOUT"
	FailureData        FailureClass = "DATA"
	FailureLeaseLost   FailureClass = "LEASE_LOST"
	FailureSetting     FailureClass = "SETTING"
	FailureScheduler   FailureClass = "SCHEDULER"
	FailureInternal    FailureClass = "INTERNAL"
)

// Problem is what keeps a worker from running: its condition is FAILING.
type Problem struct {
	// Since is the end of the first failed run after the last success, or when a database stopped
	// answering, zero if unknown.
	Since time.Time
	Class FailureClass
	// Message is a text fit for clients.
	Message string
	// Database has the problem, empty if unknown.
	Database string
}

// problems returns what keeps a worker from running, each message once: databases first, then this
// process, then failed runs. The remarks are about runs that could not reach databases which answer
// again. While a database is unreachable, failed runs do not count. A full disk answers: only the
// next run shows whether it is still full.
func (r *Reporter) problems(
	ctx context.Context, w *run.Worker, read reading,
) (found []Problem, remarks []string) {
	add := func(p Problem) {
		same := func(known Problem) bool { return known.Message == p.Message }
		if p.Message != "" && !slices.ContainsFunc(found, same) {
			found = append(found, p)
		}
	}
	for _, err := range read.errs {
		add(r.describe(ctx, err))
	}
	if w.Databases == nil {
		// Workers without a turn by database depend on jobs.
		add(r.queueProblem(ctx))
	}
	if read.off == "" {
		add(r.schedulerProblem(ctx, r.dispatcher.Heartbeat()))
	}
	away := slices.ContainsFunc(read.databases, func(d Database) bool { return d.Err != nil })
	for _, record := range read.failures {
		p := describeRun(record)
		if p.Class == FailureUnreachable && !away && !dberr.DiskFull(p.Message) &&
			r.recovered(ctx, w, record) {
			remarks = append(remarks, p.Message+"; the databases answer again")
		} else {
			add(p)
		}
	}
	return found, summarize(remarks, "runs that failed in this way")
}

// describe describes an error of a status call. nil gives the zero value.
func (r *Reporter) describe(ctx context.Context, err error) Problem {
	refused, ok := errors.AsType[*dberr.Error](err)
	if err == nil || errors.Is(err, context.Canceled) {
		return Problem{}
	}
	p := Problem{Class: FailureInternal, Message: fault.PublicText(err)}
	switch {
	case ok:
		p.Class, p.Database = failureClass(refused.Class()), refused.Database
		if p.Class == FailureUnreachable {
			// Any number of statements may have met it: it is one problem.
			p.Message = strings.Trim(
				"database "+p.Database+": "+refused.Condition()+": "+refused.Why(), ": ")
		}
	case errors.Is(err, dberr.ErrUnreachable):
		p.Class = FailureUnreachable
	case errors.Is(err, dberr.ErrNotMigrated):
		p.Class, p.Message = FailureSchema, "not migrated: run `caretaker migrate`"
	}
	for _, d := range r.runner.Databases {
		switch {
		case d.Name != p.Database:
		case p.Class == FailureUnreachable:
			p.Since = d.UnreachableSince()
		case p.Class == FailureSchema && errors.Is(d.CheckMigrated(ctx), dberr.ErrNotMigrated):
			p.Message = "database " + d.Name + " is not migrated: run `caretaker migrate`"
		}
	}
	return p
}

// failureClass returns the class of the API for a class of database errors.
func failureClass(c dberr.Class) FailureClass {
	return FailureClass(strings.ToUpper(c.String()))
}

// describeRun describes the newest run on a database, which failed.
func describeRun(record control.Failure) Problem {
	what, on := record.Error, ""
	if !strings.Contains(record.Error, record.Reason) {
		what = format.Join(record.Reason, record.Error)
	}
	if record.Database != "" {
		on = " on " + record.Database
	}
	p := Problem{
		Since: record.Since, Class: FailureInternal, Database: record.Database,
		Message: "last run" + on + " failed: " + what,
	}
	class, named := dberr.ConditionClass(record.Error)
	switch reasons.Read(record.Reason).Code {
	case reasons.KeptByTrigger:
		p.Class = FailureData
	case reasons.KeyMismatch, reasons.QueueMoved:
		p.Class = FailureSchema
	case fault.ReasonLeaseLost:
		p.Class = FailureLeaseLost
		p.Message += " (you can start a new run now)"
	case fault.ReasonSettingInvalid, reasons.SettingOff:
		p.Class = FailureSetting
	default:
		if named {
			p.Class = failureClass(class)
		}
	}
	return p
}

// recovered reports whether all databases that a run could not reach work again, and no other
// server holds its fence rows. Then the worker is healthy, even if its next run is far off.
func (r *Reporter) recovered(ctx context.Context, w *run.Worker, record control.Failure) bool {
	name, databases := w.Name, r.runner.Databases
	if record.Database != "" {
		name += "/" + record.Database
	}
	if w.Databases == nil {
		databases = run.GitLabs(databases)
	}
	var away atomic.Bool
	run.EachDatabase(ctx, databases, func(ctx context.Context, _ int, d *repo.Database) {
		if leases, err := writableLeases(ctx, d, name); err != nil || r.elsewhere(leases) != "" {
			away.Store(true)
		}
	})
	return !away.Load()
}

// queueProblem returns why this server does not work jobs. An unreachable main counts once, as that
// of the database.
func (r *Reporter) queueProblem(ctx context.Context) Problem {
	queue, ok := r.config.Queue.(interface{ Problem() (time.Time, error) })
	if !ok {
		return Problem{}
	}
	since, err := queue.Problem()
	p := r.describe(ctx, err)
	if p.Class != "" && p.Class != FailureUnreachable {
		p.Since, p.Message = since, "this server runs no jobs: "+p.Message
	}
	return p
}

// heartbeatTimeout is how long the scheduler may miss heartbeats. It checks the fires every few
// seconds.
const heartbeatTimeout = time.Minute

// schedulerProblem returns what keeps scheduled runs from starting here. It does not check whether
// main answers: the status call finds out by itself.
func (r *Reporter) schedulerProblem(ctx context.Context, last schedule.Heartbeat) Problem {
	if time.Since(last.At) >= heartbeatTimeout {
		return Problem{
			Since: last.At, Class: FailureScheduler,
			Message: "the scheduler of this server has no heartbeat, so scheduled runs do not " +
				"start on this server: restart the server",
		}
	}
	p := r.describe(ctx, last.Err)
	if p.Class == FailureUnreachable {
		return Problem{}
	}
	p.Since = last.FailingSince
	return p
}

// rank orders databases by what requires attention: a problem, dead items, due items.
func (d Database) rank() int {
	attention := []bool{d.Problem != "", d.Backlog.Dead > 0, d.Backlog.Due > 0, true}
	return slices.Index(attention, true)
}

// withProblems returns the databases of a worker with several, by rank and then in rotation order.
func withProblems(all []Database, found []Problem) []Database {
	if len(all) < 2 {
		return nil
	}
	for i, d := range all {
		there := func(p Problem) bool { return p.Database == d.Name }
		if n := slices.IndexFunc(found, there); n >= 0 {
			all[i].Problem = found[n].Message
		}
	}
	slices.SortStableFunc(all, func(a, b Database) int { return a.rank() - b.rank() })
	return all
}

// maxListed is the maximum number of problems, and of database remarks, listed in a status.
const maxListed = 5

// summarize returns the first texts, and the number of further ones.
func summarize(texts []string, what string) []string {
	if more := len(texts) - maxListed; more > 0 {
		return append(slices.Clone(texts[:maxListed]), fmt.Sprintf("%d more %s", more, what))
	}
	return texts
}
