package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Failing is why the condition of a worker is FAILING.
type Failing struct {
	// Since is the end of the first failed run after the last success, or when a database stopped
	// answering, zero if unknown.
	Since time.Time
	Class FailureClass
	// Message is a text fit for clients.
	Message string
	// Database has the problem, empty if unknown.
	Database string
}

// failing returns what keeps a worker from running, each message once: databases first, then this
// process, then failed runs. The remarks are about runs that could not reach databases which answer
// again. While a database is unreachable, failed runs do not count. A full disk answers: only the
// next run shows whether it is still full.
func (s *Service) failing(
	ctx context.Context, w *run.Worker, r reading,
) (found []Failing, remarks []string) {
	add := func(f Failing) {
		same := func(known Failing) bool { return known.Message == f.Message }
		if f.Message != "" && !slices.ContainsFunc(found, same) {
			found = append(found, f)
		}
	}
	for _, err := range r.errs {
		add(s.failingOf(ctx, err))
	}
	if queue, ok := s.queue.(interface{ Problem() (time.Time, error) }); ok && w.Databases == nil {
		// Workers without a turn by database depend on jobs.
		since, err := queue.Problem()
		f := s.failingOf(ctx, err)
		if f.Class != "" && f.Class != FailureUnreachable {
			f.Since, f.Message = since, "jobs are not worked here: "+f.Message
		}
		add(f)
	}
	if r.off == "" {
		add(s.schedulerProblem(ctx, s.Heartbeat()))
	}
	away := slices.ContainsFunc(r.places, func(p databaseStatus) bool { return p.err != nil })
	for _, record := range r.failures {
		f := failedRun(record)
		if f.Class == FailureUnreachable && !away && !dberr.DiskFull(f.Message) &&
			s.recovered(ctx, w, record) {
			remarks = append(remarks, f.Message+"; the databases answer again")
		} else {
			add(f)
		}
	}
	return found, summarize(remarks, "runs that failed so")
}

func failingText(found []Failing) string {
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = f.Message
		if !f.Since.IsZero() {
			texts[i] += fmt.Sprintf(" (since %s)", f.Since.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(summarize(texts, "problems"), "; ")
}

// failingOf describes an error of a status call. nil gives the zero value.
func (s *Service) failingOf(ctx context.Context, err error) Failing {
	refused, ok := errors.AsType[*dberr.Error](err)
	if err == nil || errors.Is(err, context.Canceled) {
		return Failing{}
	}
	f := Failing{Class: FailureInternal, Message: fault.PublicText(err)}
	switch {
	case ok:
		f.Class, f.Database = failureClass(refused.Class()), refused.Database
		if f.Class == FailureUnreachable {
			// Any number of statements may have met it: it is one problem.
			f.Message = strings.Trim(
				"database "+f.Database+": "+refused.Condition()+": "+refused.Why(), ": ")
		}
	case errors.Is(err, dberr.ErrUnreachable):
		f.Class = FailureUnreachable
	case errors.Is(err, dberr.ErrNotMigrated):
		f.Class, f.Message = FailureSchema, "not migrated: run caretaker migrate"
	}
	for _, d := range s.Databases {
		switch {
		case d.Name != f.Database:
		case f.Class == FailureUnreachable:
			f.Since = d.UnreachableSince()
		case f.Class == FailureSchema && errors.Is(d.CheckMigrated(ctx), dberr.ErrNotMigrated):
			f.Message = "database " + d.Name + " is not migrated: run caretaker migrate"
		}
	}
	return f
}

func failureClass(c dberr.Class) FailureClass {
	return FailureClass(strings.ToUpper(c.String()))
}

// failedRun describes the newest run on a database, which failed.
func failedRun(record control.Failure) Failing {
	what, on := record.Error, ""
	if !strings.Contains(record.Error, record.Reason) {
		what = format.Join(record.Reason, record.Error)
	}
	if record.Database != "" {
		on = " on " + record.Database
	}
	f := Failing{
		Since: record.Since, Class: FailureInternal, Database: record.Database,
		Message: "last run" + on + " failed: " + what,
	}
	class, named := dberr.ConditionClass(record.Error)
	switch reasons.Read(record.Reason).Code {
	case reasons.KeptByTrigger:
		f.Class = FailureData
	case reasons.KeyMismatch, reasons.QueueMoved:
		f.Class = FailureSchema
	case fault.ReasonLeaseLost:
		f.Class = FailureLeaseLost
		f.Message += "; RunBatch starts it at once"
	case fault.ReasonSettingInvalid, reasons.SettingOff:
		f.Class = FailureSetting
	default:
		if named {
			f.Class = failureClass(class)
		}
	}
	return f
}

// recovered reports whether all databases that a run could not reach work again, and no other
// server holds its fence rows. Then the worker is healthy, even if its next run is far off.
func (s *Service) recovered(ctx context.Context, w *run.Worker, record control.Failure) bool {
	name, databases := w.Name, s.Databases
	if record.Database != "" {
		name += "/" + record.Database
	}
	if w.Databases == nil {
		databases = run.GitLabs(databases)
	}
	return !slices.ContainsFunc(databases, func(d *repo.Database) bool {
		leases, err := writableLeases(ctx, d, name)
		return err != nil || s.elsewhere(leases) != ""
	})
}

// heartbeatTimeout is how long the scheduler may miss heartbeats. It checks the fires every few
// seconds.
const heartbeatTimeout = time.Minute

// schedulerProblem returns what keeps scheduled runs from starting here. It does not check whether
// main answers: the status call finds out by itself.
func (s *Service) schedulerProblem(ctx context.Context, last schedule.Heartbeat) Failing {
	if time.Since(last.At) >= heartbeatTimeout {
		return Failing{
			Since: last.At, Class: FailureScheduler,
			Message: "the scheduler of this server has no heartbeat, " +
				"scheduled runs do not start here: restart it",
		}
	}
	f := s.failingOf(ctx, last.Err)
	if f.Class == FailureUnreachable {
		return Failing{}
	}
	f.Since = last.FailingSince
	return f
}

// DatabaseStatus is the status of a worker on one of its databases.
type DatabaseStatus struct {
	Name string
	run.KnownBacklog
	// Problem is what keeps the worker from running there. "" means nothing.
	Problem string
}

// rank orders databases by what requires attention: a problem, dead items, due items.
func (d DatabaseStatus) rank() int {
	attention := []bool{d.Problem != "", d.Backlog.Dead > 0, d.Backlog.Due > 0, true}
	return slices.Index(attention, true)
}

// databasesOf returns the databases of a worker with several, by rank and then in rotation order.
func databasesOf(w *run.Worker, places []databaseStatus, found []Failing) (all []DatabaseStatus) {
	if len(w.Databases) < 2 {
		return nil
	}
	for i, d := range w.Databases {
		all = append(all, DatabaseStatus{Name: d.Name, KnownBacklog: places[i].KnownBacklog})
		there := func(f Failing) bool { return f.Database == d.Name }
		if n := slices.IndexFunc(found, there); n >= 0 {
			all[i].Problem = found[n].Message
		}
	}
	slices.SortStableFunc(all, func(a, b DatabaseStatus) int { return a.rank() - b.rank() })
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
