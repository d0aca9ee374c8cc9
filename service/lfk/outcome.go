package lfk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// failure is why a definition failed for a key.
type failure struct {
	definition, database, condition, sqlstate, message string
	// isolated: known to be this key's own.
	isolated bool
	// held: it is no failure, and the records wait for the operator.
	held bool
}

// newFailure returns the failure of a statement. Without an error from PostgreSQL its condition is
// unreachable. Rows kept by a trigger and mismatched keys have codes of our own as sqlstate.
func newFailure(task *childTask, err error, isolated bool) *failure {
	f := &failure{
		definition: task.key.String(), database: task.database, condition: "unreachable",
		message: err.Error(), isolated: isolated,
	}
	if errors.Is(err, dberr.ErrChildChanged) {
		f.condition = err.Error()
	}
	if refused, ok := errors.AsType[*dberr.Error](err); ok {
		f.condition, f.sqlstate = refused.Condition(), refused.SQLState
	}
	if kept, ok := errors.AsType[*rowset.KeptError](err); ok {
		f.condition, f.sqlstate = kept.Error(), reasons.KeptByTrigger
	}
	if mismatch, ok := errors.AsType[*lfk.KeyMismatchError](err); ok {
		f.condition, f.sqlstate = mismatch.Error(), reasons.KeyMismatch
	}
	return f
}

// of returns the failure for each of some records.
func (f *failure) of(records []lfk.Record) []lfk.RecordFailure {
	out := make([]lfk.RecordFailure, len(records))
	for i, r := range records {
		out[i] = lfk.RecordFailure{
			Record: r, Isolated: f.isolated,
			Definition: f.definition, SQLState: f.sqlstate, Message: f.message,
		}
	}
	return out
}

// tally counts the records of failures.
type tally struct {
	// records by the text of their failure.
	records map[string]int
	// class is the SQLSTATE of all, or what else they have in common. reason is the typed reason. ""
	// means none.
	class, reason string
}

// add counts the failed records by definition, database and condition. The class becomes _OTHER
// once failures have different SQLSTATEs.
func (t *tally) add(f *failure, records int) {
	if t.records == nil {
		t.records = map[string]int{}
	}
	t.records[fmt.Sprintf("%s on %s: %s", f.definition, f.database, f.condition)] += records
	switch f.sqlstate {
	case reasons.KeptByTrigger:
		t.reason = cmp.Or(t.reason, f.condition)
	case reasons.KeyMismatch:
		t.reason = cmp.Or(t.reason, f.sqlstate)
	}
	switch class := cmp.Or(f.sqlstate, "unreachable"); t.class {
	case "", class:
		t.class = class
	default:
		t.class = "_OTHER"
	}
}

// err joins the failures. nil means none.
func (t *tally) err() error {
	var texts []string
	for text, n := range t.records {
		texts = append(texts, text+", "+format.Pluralize(n, "record"))
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return &fault.ItemsFailedError{Text: strings.Join(texts, "; "), Class: t.class, Reason: t.reason}
}

// outcome collects what a run reports at its end besides its counts. Its batches add to it.
type outcome struct {
	mu       sync.Mutex
	failures tally
	// worked are the definitions with a statement that succeeded, failed those with a failed one.
	worked, failed map[failingKey]bool
	// locked counts the records postponed because of locks on rows or tables, by place.
	locked map[string]int
	// held counts the records that absent children hold. heldBy has those children.
	held   int
	heldBy []string
	living living
	// limit is why the run takes no more work, or "". incomplete: it left records.
	limit      string
	incomplete bool
}

// newOutcome returns an outcome without any findings.
func newOutcome() *outcome {
	return &outcome{
		worked: map[failingKey]bool{}, failed: map[failingKey]bool{},
		locked: map[string]int{},
		living: living{
			obsolete: map[string][]lfk.Key{}, reused: map[string]int{},
			unknown: map[string]int{}, protected: map[string]int{},
		},
	}
}

// addFailure counts the records of a failure, and logs it with the driver's text unless that was
// logged recently.
func (c *cleanup) addFailure(ctx context.Context, f *failure, records int, err error) {
	key := failingKey{c.x.Database.Name, f.definition, f.database}
	c.outcome.mu.Lock()
	c.outcome.failed[key] = true
	c.outcome.failures.add(f, records)
	c.outcome.mu.Unlock()
	if c.failing.begins(key, f.condition) {
		c.x.Log.ErrorContext(ctx, "definition failed", "definition", f.definition,
			"child_database", f.database, "condition", f.condition, "error", err)
	}
}

// addWorked records that a statement of a task has succeeded.
func (c *cleanup) addWorked(task *childTask) {
	c.outcome.mu.Lock()
	defer c.outcome.mu.Unlock()
	c.outcome.worked[failingKey{c.x.Database.Name, task.key.String(), task.database}] = true
}

// addPostponed counts records postponed because of locks, by place. held counts those that absent
// children of p hold.
func (o *outcome) addPostponed(locked map[string]int, p *parentTasks, held int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for place, n := range locked {
		o.locked[place] += n
	}
	if held > 0 {
		o.held += held
		o.heldBy = append(o.heldBy, without(p.absentChildren(), o.heldBy)...)
	}
}

// reach ends the run at a limit. The first one counts.
func (o *outcome) reach(limit string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = cmp.Or(o.limit, "limit reached: "+limit)
}

// leaveIncomplete records that the run has left records for a later run.
func (o *outcome) leaveIncomplete() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.incomplete = true
}

// reached returns the limit that has ended the run, or "".
func (o *outcome) reached() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.limit
}

// err returns the run's error. nil means nothing failed.
func (o *outcome) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failures.err()
}

// with adds the failures so far to an error that ended the run. A run that was cancelled or lost
// its lease stays so.
func (o *outcome) with(err error) error {
	_, stopped := errors.AsType[fault.StopError](err)
	failed := o.err()
	if failed == nil || stopped && !fault.EndsEarly(err) || errors.Is(err, dberr.ErrLeaseLost) {
		return err
	}
	text := failed.Error() + "; " + fault.PublicText(err)
	return fmt.Errorf("%w: %w", &fault.FailedError{Text: text}, err)
}

// maxPlaces is the maximum number of places in a run's reason and log: those with the most records.
const maxPlaces = 5

// lockedText returns a text for people: "4 records postponed, because other transactions have locked
// rows of ci_builds on ci (4)", or "".
func (o *outcome) lockedText() string {
	total, named := 0, []string{}
	places := slices.SortedFunc(maps.Keys(o.locked), func(a, b string) int {
		return cmp.Or(cmp.Compare(o.locked[b], o.locked[a]), cmp.Compare(a, b))
	})
	for i, place := range places {
		total += o.locked[place]
		if i < maxPlaces {
			named = append(named, fmt.Sprintf("%s (%d)", place, o.locked[place]))
		}
	}
	if total == 0 {
		return ""
	}
	if len(places) > maxPlaces {
		named = append(named, "and "+format.Pluralize(len(places)-maxPlaces, "more table"))
	}
	return format.Pluralize(total, "record") + " postponed, because other transactions have locked rows of " +
		strings.Join(named, ", ")
}

// reportLocked reports the records postponed for locks, in one line and, unless the run has another
// one, as its reason.
func (c *cleanup) reportLocked(ctx context.Context) {
	text := c.outcome.lockedText()
	if text == "" {
		return
	}
	if !c.x.DryRun {
		c.x.Log.WarnContext(ctx, "child rows locked, records postponed", "locked", text)
	}
	c.x.Report(func(r *run.Run) { r.Reason = cmp.Or(r.Reason, text) })
}

// reportHeld adds the number of held records, and why, to the run's reason.
func (c *cleanup) reportHeld() {
	if c.outcome.held == 0 {
		return
	}
	slices.Sort(c.outcome.heldBy)
	text := format.Pluralize(c.outcome.held, "record") + " held, because " + c.absentText(c.outcome.heldBy)
	c.x.Report(func(r *run.Run) { r.Reason = format.Join(r.Reason, text) })
}

// failingKey is a definition in a database of its child, for the records of a queue.
type failingKey struct{ queue, definition, database string }

// failing tracks the failing definitions for the life of the process. So the log has a line at the
// start of a failure, at a new condition, every hour and at the end.
type failing struct {
	mu sync.Mutex
	// logged is the time of the last log line, by condition.
	logged map[failingKey]map[string]time.Time
}

func newFailing() *failing { return &failing{logged: map[failingKey]map[string]time.Time{}} }

// logEvery is the interval of log lines on a definition that still fails.
const logEvery = time.Hour

// begins reports whether to log a failure, and assumes that the caller logs it.
func (f *failing) begins(key failingKey, condition string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, ok := f.logged[key][condition]; ok && time.Since(at) < logEvery {
		return false
	}
	if f.logged[key] == nil {
		f.logged[key] = map[string]time.Time{}
	}
	f.logged[key][condition] = time.Now()
	return true
}

// among returns the failing ones of some keys.
func (f *failing) among(keys map[failingKey]bool) (failing []failingKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range keys {
		if f.logged[key] != nil {
			failing = append(failing, key)
		}
	}
	return failing
}

// over forgets what was logged about a definition, so that its next failure is logged again.
func (f *failing) over(key failingKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.logged, key)
}

// reportRecovered logs the definitions that work again. In this run a statement has succeeded and
// none has failed, and no record that failed by itself is waiting for them.
func (c *cleanup) reportRecovered(ctx context.Context) {
	worked := maps.Clone(c.outcome.worked)
	maps.DeleteFunc(worked, func(key failingKey, _ bool) bool { return c.outcome.failed[key] })
	recovered := c.failing.among(worked)
	if len(recovered) == 0 {
		return
	}
	var definitions []string
	for _, key := range recovered {
		definitions = append(definitions, key.definition)
	}
	// If that cannot be read, the next run logs it.
	left, err := c.x.Database.Queue.FailingDefinitions(ctx, c.queue, definitions, run.ReadLimits())
	if err != nil {
		return
	}
	for _, key := range recovered {
		if !slices.Contains(left, key.definition) {
			c.failing.over(key)
			c.x.Log.InfoContext(ctx, "definition recovered",
				"definition", key.definition, "child_database", key.database)
		}
	}
}
