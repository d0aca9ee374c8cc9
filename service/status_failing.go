package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// FailureClass is what kind of problem keeps a worker from its work.
type FailureClass string

// The classes, as the API has them.
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
	// Since is the end of the first run that failed since the last success, or when a database ceased
	// to answer; zero where it is not known.
	Since time.Time
	Class FailureClass
	// Message is in words fit for clients.
	Message string
	// Database with the problem, empty where it is not known.
	Database string
}

// failing returns what keeps a worker from its work, each message once: databases first, then this
// process, then runs that failed. The remarks are on runs that could not reach databases which
// answer again. While a database is away, no run is one of these. A full disk answers: the next run
// shows whether it is still full.
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
		// Workers that have no turn by database live on jobs.
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

// failingOf puts an error of a status call into words: nothing for none.
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
			// However many statements have met it: it is one trouble.
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

// why joins the reason and the error of a run, each of which may be "".
func why(reason, text string) string { return strings.Trim(reason+"; "+text, "; ") }

// failedRun puts the newest run on a database, which failed, into words.
func failedRun(record control.Failure) Failing {
	what, on := record.Error, ""
	if !strings.Contains(record.Error, record.Reason) {
		what = why(record.Reason, record.Error)
	}
	if record.Database != "" {
		on = " on " + record.Database
	}
	f := Failing{
		Since: record.Since, Class: FailureInternal, Database: record.Database,
		Message: "last run" + on + " failed: " + what,
	}
	class, named := dberr.ConditionClass(record.Error)
	switch reasons.ReadReason(record.Reason).Code {
	case reasons.ReasonKeptByTrigger:
		f.Class = FailureData
	case reasons.ReasonKeyMismatch, reasons.ReasonQueueMoved:
		f.Class = FailureSchema
	case fault.ReasonLeaseLost:
		f.Class = FailureLeaseLost
		f.Message += "; RunBatch starts it at once"
	case fault.ReasonSettingInvalid, reasons.ReasonSettingOff:
		f.Class = FailureSetting
	default:
		if named {
			f.Class = failureClass(class)
		}
	}
	return f
}

// recovered reports whether all databases of a run that could not reach some can work again, and
// no other server holds its fence rows. Then the worker is healthy, even if its next run is far
// off.
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

// heartbeatTimeout is how long the scheduler may have no heartbeat: it checks the fires every few
// seconds.
const heartbeatTimeout = time.Minute

// schedulerProblem is what keeps scheduled runs from starting here. Whether main answers the status
// call finds out by itself.
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

// DatabaseStatus is where a worker stands on one of its databases.
type DatabaseStatus struct {
	Name string
	run.KnownBacklog
	// Problem is what keeps its runs from their work there; "": nothing does.
	Problem string
}

// rank orders databases by what needs attention: a problem, something dead, something due.
func (d DatabaseStatus) rank() int {
	attention := []bool{d.Problem != "", d.Backlog.Dead > 0, d.Backlog.Due > 0, true}
	return slices.Index(attention, true)
}

// databasesOf are the databases of a worker that has several, by rank, and within it in the order
// of the rotation.
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

// maxListed is how many problems, and how many remarks of databases, a status has in words.
const maxListed = 5

// summarize are the first of some texts, and how many more there are.
func summarize(texts []string, what string) []string {
	if more := len(texts) - maxListed; more > 0 {
		return append(slices.Clone(texts[:maxListed]), fmt.Sprintf("%d more %s", more, what))
	}
	return texts
}
