package loosefk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// failure is why a definition could not be done for a key.
type failure struct {
	definition, database, condition, sqlstate, message string
	// isolated: known to be this key's own.
	isolated bool
}

func (f *failure) of(records []repo.Record) []repo.RecordFailure {
	out := make([]repo.RecordFailure, len(records))
	for i, r := range records {
		out[i] = repo.RecordFailure{Record: r, Isolated: f.isolated, Definition: f.definition, SQLState: f.sqlstate, Message: f.message}
	}
	return out
}

// failures are those of a run, by definition, database and condition.
type failures struct {
	log *slog.Logger
	// queue is the run's database, failing what the log has told of earlier runs.
	queue   string
	failing *failing

	mu sync.Mutex
	// worked are the definitions of which a statement has succeeded, failed those of which one has not.
	worked, failed map[failingKey]bool
	// records counts them by their text.
	records map[string]int
	// class is the SQLSTATE of all, or what else they have in common; reason the run's typed reason, "" if it has none.
	class, reason string
}

func newFailures(x *run.Execution, known *failing) *failures {
	return &failures{
		log: x.Log, queue: x.Database.Name, failing: known,
		worked: map[failingKey]bool{}, failed: map[failingKey]bool{}, records: map[string]int{},
	}
}

// works notes that a statement of a step has succeeded.
func (l *failures) works(s *step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worked[failingKey{l.queue, s.key.String(), s.database}] = true
}

// unfailed are the definitions that have worked, and have not failed.
func (l *failures) unfailed() map[failingKey]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	unfailed := maps.Clone(l.worked)
	maps.DeleteFunc(unfailed, func(key failingKey, _ bool) bool { return l.failed[key] })
	return unfailed
}

func (f *failure) text() string {
	return fmt.Sprintf("%s on %s: %s", f.definition, f.database, f.condition)
}

// add counts the records of a failure, and logs what is new of it, with the driver's text.
func (l *failures) add(ctx context.Context, f *failure, records int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := failingKey{l.queue, f.definition, f.database}
	l.failed[key] = true
	if l.failing.tell(key, f.condition) {
		l.log.ErrorContext(ctx, "definition failed", "definition", f.definition, "child_database", f.database, "condition", f.condition, "error", err)
	}
	l.count(f, records)
}

// count is add without a word in the log.
func (l *failures) count(f *failure, records int) {
	l.records[f.text()] += records
	if f.sqlstate == repo.ReasonKeptByTrigger {
		l.reason = cmp.Or(l.reason, f.condition)
	}
	switch class := cmp.Or(f.sqlstate, "unreachable"); l.class {
	case "", class:
		l.class = class
	default:
		l.class = "_OTHER"
	}
}

// err is the run's error: nil if nothing failed.
func (l *failures) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts []string
	for text, n := range l.records {
		texts = append(texts, fmt.Sprintf("%s, %d records", text, n))
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return &run.ItemsFailedError{Text: strings.Join(texts, "; "), Class: l.class, Reason: l.reason}
}

// with adds the failures so far to an error that ended the run. A run that was cancelled or lost its lease stays so.
func (l *failures) with(err error) error {
	_, stopped := errors.AsType[run.StopError](err)
	failed := l.err()
	if failed == nil || stopped && !run.EndsEarly(err) || errors.Is(err, repo.ErrLeaseLost) {
		return err
	}
	return fmt.Errorf("%w: %w", &run.FailedError{Text: failed.Error() + "; " + run.PublicText(err)}, err)
}

func newFailure(s *step, err error, isolated bool) *failure {
	f := &failure{definition: s.key.String(), database: s.database, condition: "unreachable", message: err.Error(), isolated: isolated}
	if refused, is := errors.AsType[*repo.Error](err); is {
		f.condition, f.sqlstate = refused.Condition(), refused.SQLState
	}
	if kept, is := errors.AsType[*repo.KeptError](err); is {
		f.condition, f.sqlstate = kept.Error(), repo.ReasonKeptByTrigger
	}
	return f
}

// failKeys flags the keys and lets them go on to the other definitions. The first failure of a key counts; of two, one
// that is its own.
func (c *cleanup) failKeys(ctx context.Context, s *step, keys []*openKey, err error, isolated bool) {
	f := newFailure(s, err, isolated)
	records := 0
	for _, k := range keys {
		records += len(k.records)
		if k.failure == nil || (isolated && !k.failure.isolated) {
			k.failure = f
		}
		k.next()
	}
	c.failures.add(ctx, f, records, err)
}

// classify says what to do about an error. What must end the run is returned as such by refuse.
func (a *attempt) classify(err error) repo.Class {
	var refused *repo.Error
	switch {
	case errors.As(err, &refused):
		return refused.Class()
	case errors.Is(err, repo.ErrUnreachable):
		return repo.ClassUnreachable
	}
	return repo.ClassData
}

// shrink makes the statement smaller after a time-out: fewer rows, and once there are no more rows than keys, fewer
// keys. It says whether to try the same keys again.
func (a *attempt) shrink(ctx context.Context, keys []*openKey, rows int64, err error) (again bool, _ error) {
	a.timeouts++
	a.sizes.Halve(a.step, rows)
	if a.spent() {
		a.failKeys(ctx, a.step, keys, err, false)
		return false, nil
	}
	if rows > int64(len(keys)) || len(keys) == 1 {
		return true, nil
	}
	return false, a.halves(ctx, keys, err)
}

// spent says that no more statements may go into finding out which keys are at fault.
func (a *attempt) spent() bool { return a.failing >= maxFailing || a.timeouts >= maxTimeouts }

// halves tries the keys half by half after an error.
func (a *attempt) halves(ctx context.Context, keys []*openKey, err error) error {
	middle := len(keys) / 2
	for _, half := range [][]*openKey{keys[:middle], keys[middle:]} {
		if a.spent() {
			a.failKeys(ctx, a.step, half, err, false)
		} else if err := a.try(ctx, half); err != nil {
			return err
		}
	}
	return nil
}

// refuse deals with a statement that the database refused: a fault that may be in the rows is isolated key by key,
// everything else fails for all keys that have rows. Only what is surely a row's fault counts towards giving its record
// up. Errors that are not the statement's own end the run.
func (a *attempt) refuse(ctx context.Context, keys []*openKey, err error, class repo.Class) error {
	var refused *repo.Error
	switch {
	case errors.Is(err, errNoBudget):
		return nil
	case errors.As(err, &refused) && refused.SQLState != "":
		// It answers: whatever it lacks, other definitions may do without.
	case class == repo.ClassUnreachable && a.step.child.Database != a.x.Database:
		a.markDown(a.step, err)
		a.failKeys(ctx, a.step, keys, err, false)
		return nil
	default:
		return err
	}
	a.failing++
	if remaining, probeErr := a.remaining(ctx, a.step, keys); probeErr == nil {
		advance(keys, remaining)
		keys = still(keys, remaining)
	}
	if len(keys) == 0 {
		return nil
	}
	child := a.step.child
	rules := child.Database.RefusedBy(ctx, err, child.Table(), actionOf(a.step.key) == deletes)
	if len(rules) > 0 {
		a.failKeys(ctx, a.step, keys, &repo.KeptError{By: rules}, true)
		return nil
	}
	if mayBeRows := class == repo.ClassData || refused.Unfit(); mayBeRows && len(keys) > 1 && !a.spent() {
		return a.halves(ctx, keys, err)
	}
	a.failKeys(ctx, a.step, keys, err, class == repo.ClassData && len(keys) == 1)
	return nil
}
