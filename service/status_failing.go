package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
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
	// Since is the end of the first run that failed since the last success, or when a database ceased to answer; zero
	// where it is not known.
	Since time.Time
	Class FailureClass
	// Message is in words fit for clients.
	Message string
	// Database with the problem, empty where it is not known.
	Database string
}

// problems are those of one worker as a status call finds them, without repetition: databases first, then runs.
type problems []Failing

func (t *problems) add(f Failing) {
	if f.Message == "" || slices.ContainsFunc(*t, func(known Failing) bool { return known.Message == f.Message }) {
		return
	}
	*t = append(*t, f)
}

func (t *problems) words() string {
	var texts []string
	for _, f := range *t {
		text := f.Message
		if !f.Since.IsZero() {
			text += fmt.Sprintf(" (since %s)", f.Since.UTC().Format(time.RFC3339))
		}
		texts = append(texts, text)
	}
	return strings.Join(firstTold(texts, "problems"), "; ")
}

// failing puts an error of a status call into words: nothing for none.
func (s *Service) failing(ctx context.Context, err error) Failing {
	refused, ok := errors.AsType[*repo.Error](err)
	if err == nil || errors.Is(err, context.Canceled) {
		return Failing{}
	}
	f := Failing{Class: FailureInternal, Message: run.PublicText(err)}
	switch {
	case ok:
		f.Class, f.Database = failureClass(refused.Class()), refused.Database
		if f.Class == FailureUnreachable {
			// However many statements have met it: it is one trouble.
			f.Message = strings.Trim(fmt.Sprintf("database %s: %s: %s", f.Database, refused.Condition(), refused.Why()), ": ")
		}
	case errors.Is(err, repo.ErrUnreachable):
		f.Class = FailureUnreachable
	case errors.Is(err, repo.ErrNotMigrated):
		f.Class, f.Message = FailureSchema, "not migrated: run caretaker migrate"
	}
	for _, d := range s.Databases {
		if d.Name != f.Database {
			continue
		}
		switch {
		case f.Class == FailureUnreachable:
			f.Since = d.UnreachableSince()
		case f.Class == FailureSchema && errors.Is(d.CheckMigrated(ctx), repo.ErrNotMigrated):
			f.Message = "database " + d.Name + " is not migrated: run caretaker migrate"
		}
	}
	return f
}

func failureClass(c repo.Class) FailureClass {
	switch c {
	case repo.ClassUnreachable:
		return FailureUnreachable
	case repo.ClassSchema:
		return FailureSchema
	case repo.ClassLock:
		return FailureLock
	case repo.ClassTimeout:
		return FailureTimeout
	case repo.ClassData:
	}
	return FailureData
}

// queueProblem is what keeps this process from working jobs. Workers that have no turn by database live on them.
func (s *Service) queueProblem(ctx context.Context, w *run.Worker) Failing {
	queue, ok := s.queue.(interface{ Problem() (time.Time, error) })
	if !ok || w.Databases != nil {
		return Failing{}
	}
	since, err := queue.Problem()
	f := s.failing(ctx, err)
	if f.Class != "" && f.Class != FailureUnreachable {
		f.Message = "jobs are not worked here: " + f.Message
		f.Since = since
	}
	return f
}

// why joins the reason and the error of a run, each of which may be "".
func why(reason, text string) string { return strings.Trim(reason+"; "+text, "; ") }

// failed puts the newest run on a database, which failed, into words.
func failed(record repo.Failure) Failing {
	what := record.Error
	if !strings.Contains(record.Error, record.Reason) {
		what = why(record.Reason, record.Error)
	}
	f := Failing{
		Since: record.Since, Class: FailureInternal, Database: record.Database,
		Message: fmt.Sprintf("last run on %s failed: %s", record.Database, what),
	}
	if record.Database == "" {
		f.Message = "last run failed: " + what
	}
	class, named := repo.ConditionClass(record.Error)
	code := repo.ReadReason(record.Reason).Code
	switch {
	case code == repo.ReasonKeptByTrigger:
		f.Class = FailureData
	case code == repo.ReasonKeyMismatch, code == repo.ReasonQueueMoved:
		f.Class = FailureSchema
	case code == run.ReasonLeaseLost:
		f.Class = FailureLeaseLost
		f.Message += "; RunBatch starts it at once"
	case code == run.ReasonSettingInvalid, code == run.ReasonSettingOff:
		f.Class = FailureSetting
	case named:
		f.Class = failureClass(class)
	}
	return f
}

// answerAgain says whether what a run could not reach has come back: all its databases can work, and nobody else holds its
// fence rows. Then the worker is in order, though its next run may be far off.
func (s *Service) answerAgain(ctx context.Context, w *run.Worker, record repo.Failure) bool {
	name := w.Name
	if record.Database != "" {
		name += "/" + record.Database
	}
	databases := s.Databases
	if w.Databases == nil {
		databases = run.GitLabs(databases)
	}
	return !slices.ContainsFunc(databases, func(d *repo.Database) bool {
		bounded, cancel := context.WithTimeoutCause(ctx, leasesTimeout, repo.ErrUnreachable)
		defer cancel()
		if d.Writable(bounded) != nil {
			return true
		}
		leases, err := d.ListLeases(bounded, []string{name})
		return err != nil || slices.ContainsFunc(leases, func(l run.Lease) bool { return !l.Expired && l.Holder != s.Replica })
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
	f := s.failing(ctx, last.Err)
	if f.Class == "" || f.Class == FailureUnreachable {
		return Failing{}
	}
	f.Since = last.FailingSince
	return f
}
