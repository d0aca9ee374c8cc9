package lfk

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
)

// The worker's status between runs: whether records are due, how many are pending, and why some
// stay.

// due reports whether records of parents with definitions are due in a database. A database that
// cannot be read, or whose queue is damaged, counts as one with due records. Its run repairs the
// queue or reports the fault.
func (k *worker) due(ctx context.Context, d *repo.Database) bool {
	if k.LooseForeignKeys() == nil {
		return false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, run.DueTimeout, dberr.ErrUnreachable)
	defer cancel()
	queue, err := d.Queue.DeletedRecords(ctx)
	switch {
	case err != nil:
		return true
	case !queue.Exists:
		return false
	case !queue.Partitioned, queue.Managed && queue.ActiveMissing():
		return true
	}
	due, err := d.Queue.DueParents(ctx, queue, run.ReadLimits())
	if err != nil {
		return true
	}
	recorded := lfk.ParentNames(due)
	accepted, err := k.acceptedAbsent(ctx)
	return err != nil || len(k.undefined(queue, recorded, accepted)) < len(recorded)
}

// undefined returns the recorded names of parents without definitions. A parent whose children are
// all accepted as absent counts as one without.
func (k *worker) undefined(
	q lfk.DeletedRecords, recorded []string, accepted Absences,
) []string {
	defined := map[string]bool{}
	for _, key := range k.LooseForeignKeys() {
		if !accepted.Everywhere(key.Table) {
			defined[catalog.RecordedName(key.Parent, q.Schema)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(recorded), func(name string) bool { return defined[name] })
}

// backlog counts the records, with remarks on those that stay.
func (k *worker) backlog(
	ctx context.Context, d *repo.Database,
) (control.Backlog, string, error) {
	queue, err := d.Queue.DeletedRecordsShape(ctx)
	if err != nil {
		return control.Backlog{}, "", err
	}
	var backlog control.Backlog
	if queue.Exists {
		backlog, err = d.Queue.QueueBacklog(ctx, queue, run.BacklogLimits())
		for _, t := range queue.Existing() {
			backlog.Partitions = max(backlog.Partitions, t.Leaves)
		}
	}
	if err != nil || k.LooseForeignKeys() == nil {
		return backlog, "", err
	}
	// The counts are read. Remarks are optional: those that cannot be read are left out.
	accepted, acceptedErr := k.acceptedAbsent(ctx)
	var remarks []string
	if acceptedErr == nil {
		untracked, err := k.untracked(ctx, d, accepted)
		backlog.Untracked, backlog.TrackingKnown = len(untracked), err == nil
		remarks = untrackedRemark(d, untracked)
	}
	if !queue.Exists {
		return backlog, strings.Join(remarks, "; "), nil
	}
	failing, _ := d.Queue.FailingRecords(ctx, queue, lfk.FailingFilter{}, lfk.FailingRecord{}, failingPage)
	remarks = append(remarks, failingRemark(d, failing)...)
	remarks = append(remarks, k.absentRemark(d, accepted, failing)...)
	_ = d.Queue.ReadDefault(ctx, &queue)
	parents, _ := d.Queue.DueParents(ctx, queue, run.ReadLimits())
	due := lfk.ParentNames(parents)
	remarks = append(remarks, k.missingDefinitionsRemark(ctx, d, queue.Schema, due)...)
	if undefined := k.undefined(queue, due, accepted); len(undefined) > 0 {
		remarks = append(remarks, fmt.Sprintf("records on %s belong to parents without definitions: %s",
			d.Name, strings.Join(undefined, ", ")))
	}
	return backlog, strings.Join(remarks, "; "), nil
}

// waitingShown is the maximum number of records listed per database.
const waitingShown = 100

// waiting lists the dead records, or those that have failed and are retried. Only `caretaker lfk
// dead` shows the server's messages, since they may quote rows.
func (k *worker) waiting(
	ctx context.Context, d *repo.Database, dead bool,
) (list []jobqueue.Waiting, err error) {
	queue, err := d.Queue.DeletedRecordsShape(ctx)
	if err != nil || !queue.Exists {
		return nil, err
	}
	if dead {
		records, err := admin.New(d.Database).DeadRecords(ctx, admin.DeadRecordFilter{}, 0, waitingShown)
		for _, r := range records {
			list = append(list, jobqueue.Waiting{
				Kind: "record", ID: r.ID, Name: recordName(r.Table, r.Key()), Since: r.DeadAt,
				Code: reasons.DeadRecord, Reason: fmt.Sprintf("%s failed %d times, last with %s", r.Definition, r.Failures, r.SQLState),
			})
		}
		return list, err
	}
	records, err := d.Queue.FailingRecords(ctx, queue, lfk.FailingFilter{}, lfk.FailingRecord{}, waitingShown)
	for _, r := range records {
		// The id of a routed record is no number, and is left out.
		id, _ := strconv.ParseInt(string(r.ID), 10, 64)
		w := jobqueue.Waiting{
			Kind: "record", ID: id, Name: recordName(r.Table, r.Key()), Since: r.FailedAt,
			Code: r.SQLState, Reason: r.Definition + ": " + cmp.Or(r.SQLState, "its database did not answer"),
		}
		if r.NextTry != nil {
			w.Until = *r.NextTry
		}
		list = append(list, w)
	}
	return list, err
}

// recordName returns the table and key of a record for messages: "orders 42".
func recordName(table string, key lfk.Key) string { return table + " " + key.String() }

// failingPage is the maximum number of failing records in one query.
const failingPage = 1000

// failingRemark reports failed or held records, which are postponed while runs succeed.
func failingRemark(d *repo.Database, failing []lfk.FailingRecord) []string {
	number := format.Pluralize(len(failing), "record")
	switch len(failing) {
	case 0:
		return nil
	case failingPage:
		number = "at least " + number
	}
	return []string{fmt.Sprintf("%s on %s could not be processed and will be retried "+
		"(run `caretaker lfk dead --failing`)", number, d.Name)}
}

// absentRemark names the children that hold records and have not been accepted. The last run of
// this process has found them, for all databases. Before the first run, they come from the held
// records of this database.
func (k *worker) absentRemark(
	d *repo.Database, accepted Absences, failing []lfk.FailingRecord,
) []string {
	k.mu.Lock()
	dropped := k.dropped
	absent := slices.AppendSeq(slices.Clone(k.absent), maps.Keys(dropped))
	k.mu.Unlock()
	slices.Sort(absent)
	absent = slices.Compact(absent)
	if absent != nil && d != k.Main {
		return nil
	}
	if absent == nil {
		absent = k.holders(failing)
	}
	absent = slices.DeleteFunc(absent, func(child string) bool {
		return accepted.Everywhere(child) ||
			dropped[child] != nil && accepted.on(child, dropped[child])
	})
	if len(absent) == 0 {
		return nil
	}
	return []string{"records are held, because " + k.absentText(absent)}
}

// holders returns the child tables that records are held for, by name.
func (k *worker) holders(failing []lfk.FailingRecord) (children []string) {
	for _, key := range k.LooseForeignKeys() {
		if slices.ContainsFunc(failing, func(r lfk.FailingRecord) bool {
			return r.SQLState == stateAbsent && r.Definition == key.String()
		}) {
			children = append(children, key.Table)
		}
	}
	slices.Sort(children)
	return slices.Compact(children)
}

// withoutHeld returns the reason of a run without the part on held or skipped records: the status
// has its own, newer remarks about them.
func withoutHeld(reason string) string {
	return regexp.MustCompile(`(^|; )(\d+ records? held|records are skipped), .*$`).ReplaceAllString(reason, "")
}
