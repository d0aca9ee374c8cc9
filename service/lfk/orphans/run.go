package orphans

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// working is one run of the worker.
type working struct {
	*audit
	x *run.Execution
	// records is how many it may still write.
	records int
	// failed has the errors of definitions. late names those that wait for older transactions.
	failed, late []string
}

// work continues the audit where the previous run ended, or begins a new one. A run ends after
// MaxRecords queued records.
func (a *audit) work(ctx context.Context, x *run.Execution) error {
	w := &working{audit: a, x: x, records: a.config.MaxRecords}
	for _, count := range []string{
		"examined_keys", "orphaned_keys", "orphaned_rows", "queued_records",
	} {
		x.Count(ctx, count, 0)
	}
	// 1. Read the definitions to audit, and the places that the previous run reached.
	tasks, err := Audit{a.Databases, a.LooseForeignKeys()}.Tasks(ctx)
	if err != nil {
		return err
	}
	places, err := a.Main.Orphans.AuditPlaces(ctx)
	if err != nil {
		return err
	}
	// 2. Begin a new audit if none is open.
	if len(places) == 0 {
		if places, err = w.begin(ctx, tasks); err != nil {
			return err
		}
	}
	// 3. Audit the definitions that are not done. A limit ends the run here.
	for _, task := range tasks {
		place := orphans.AuditPlace{Definition: task.Name(), Database: task.Database()}
		if i := slices.IndexFunc(places, func(p orphans.AuditPlace) bool {
			return p.Definition == place.Definition && p.Database == place.Database
		}); i >= 0 {
			place = places[i]
		}
		if place.Done {
			continue
		}
		if more, err := w.task(ctx, task, place); err != nil || more {
			return err
		}
	}
	return w.end(ctx)
}

// begin starts an audit: it creates all places, so that its backlog is known.
func (w *working) begin(ctx context.Context, tasks []*Task) (places []orphans.AuditPlace, err error) {
	for _, t := range tasks {
		place := orphans.AuditPlace{Definition: t.Name(), Database: t.Database()}
		if err := w.save(ctx, &place); err != nil {
			return nil, err
		}
		places = append(places, place)
	}
	return places, nil
}

// end ends the audit if all definitions are done.
func (w *working) end(ctx context.Context) error {
	switch {
	case len(w.late) > 0:
		reason := "the orphan search of " + strings.Join(w.late, ", ") + " is not finished, because older transactions " +
			"are open or the parent has more than 10,000 pending records: the next run continues"
		w.x.Limit(reason, reason)
	case !w.x.DryRun:
		err := w.x.WithPermit(ctx, w.Main, limits(), func(p fencing.Permit) error {
			return w.Main.Orphans.EndAudit(ctx, p)
		})
		if err != nil {
			return err
		}
	}
	if len(w.failed) > 0 {
		return &fault.FailedError{Text: strings.Join(w.failed, "; ")}
	}
	return nil
}

// save saves a place for the next run, with the counts up to it.
func (w *working) save(ctx context.Context, place *orphans.AuditPlace) error {
	if !w.x.DryRun {
		err := w.x.WithPermit(ctx, w.Main, limits(), func(p fencing.Permit) error {
			return w.Main.Orphans.SaveAuditPlace(ctx, p, *place)
		})
		if err != nil {
			return err
		}
	}
	w.x.Count(ctx, "examined_keys", place.Found.Keys)
	w.x.Count(ctx, "orphaned_keys", place.Found.Orphans)
	w.x.Count(ctx, "orphaned_rows", place.Found.Rows)
	place.Found = orphans.AuditFound{}
	return nil
}

// task audits a definition from a place on. more: a limit of the run came before its end.
func (w *working) task(
	ctx context.Context, t *Task, place orphans.AuditPlace,
) (more bool, err error) {
	total := &found{}
	defer total.log(ctx, w.x, t)
	for {
		if err := w.x.Stopped(); err != nil {
			return false, err
		}
		// 1. Check the limits of the run.
		limit := ""
		switch {
		case w.x.Left() <= 0:
			limit = "max_runtime"
		case w.fixes() && w.records <= 0:
			limit = "max_records"
		}
		if limit != "" {
			w.x.Limit("limit reached: "+limit, "limit reached: "+limit)
			return true, nil
		}
		// 2. Audit the next page of keys.
		var done, late bool
		err := w.x.Batch(ctx, func(ctx context.Context) (err error) {
			done, late, err = w.batch(ctx, t, &place, total)
			return err
		}, attribute.String("maintenance.database", t.Database()),
			attribute.String("maintenance.definition", t.Key.String()))
		// 3. Decide whether the run, the definition or neither ends.
		if w.ends(err) {
			return false, err
		}
		if late = late || errors.Is(err, ErrBusy); late {
			w.late = append(w.late, t.Key.String())
			return false, nil
		}
		if err != nil {
			done = true
			w.fail(ctx, t, err)
		}
		if done {
			place.Done = true
			return false, w.save(ctx, &place)
		}
	}
}

// ends reports whether an error ends the run, and not only the definition's turn.
func (w *working) ends(err error) bool {
	return err != nil && (errors.Is(err, dberr.ErrLeaseLost) || w.x.Stopped() != nil)
}

// fail records the error of a definition.
func (w *working) fail(ctx context.Context, t *Task, err error) {
	text := fault.PublicText(err)
	w.x.Log.ErrorContext(ctx, "definition not audited", "definition", t.Key.String(),
		"child_database", t.Database(), "error", err)
	w.failed = append(w.failed, t.Key.String()+" on "+t.Database()+": "+text)
}

// batch checks the next keys, and moves the place after them. done: no keys follow. late: their
// records have to wait.
func (w *working) batch(
	ctx context.Context, t *Task, place *orphans.AuditPlace, total *found,
) (done, late bool, err error) {
	if what := t.faultOf(w.fixes()); what != "" {
		return false, false, &fault.FailedError{Text: what}
	}
	most := w.config.BatchSize
	if w.fixes() {
		most = w.records
	}
	page, err := t.Scan(ctx, lfk.KeyOf(place.After...), w.config.BatchSize, most)
	if err != nil || len(page.Keys) == 0 {
		return true, false, err
	}
	var recorded int64
	if w.fixes() && len(page.Orphans) > 0 {
		if recorded, late, err = w.record(ctx, t, page); err != nil || late {
			return false, late, err
		}
		w.records -= len(page.Orphans)
	}
	place.Found.Keys += int64(len(page.Keys))
	place.Found.Orphans += int64(len(page.Orphans))
	place.Found.Rows += page.Rows
	w.x.Count(ctx, "queued_records", recorded)
	total.add(page, recorded)
	place.After = page.Keys[len(page.Keys)-1].Values()
	if !page.More {
		return true, false, nil
	}
	return false, false, w.save(ctx, place)
}

// record writes the records of a page's orphans, or returns how many there would be.
func (w *working) record(
	ctx context.Context, t *Task, page Page,
) (n int64, late bool, err error) {
	if w.x.DryRun {
		return int64(len(page.Orphans)), false, nil
	}
	return t.Record(ctx, page, func(do func(fencing.Permit) error) error {
		return w.x.WithPermit(ctx, t.QueueDatabase(), limits(), do)
	})
}

// faultOf returns why a task is impossible. "" means it is possible.
func (t *Task) faultOf(fix bool) string {
	if t.Fault != "" || !fix {
		return t.Fault
	}
	return t.Refuses()
}

// found counts the findings of a definition.
type found struct{ keys, rows, queued int64 }

// add adds the findings of one page of keys.
func (f *found) add(p Page, queued int64) {
	f.keys += int64(len(p.Orphans))
	f.rows += p.Rows
	f.queued += queued
}

// log logs the findings of a run for a definition, if there are any.
func (f *found) log(ctx context.Context, x *run.Execution, t *Task) {
	if f.keys > 0 {
		x.Log.WarnContext(ctx, "orphaned rows found", "definition", t.Key.String(),
			"child_database", t.Database(), "keys", f.keys, "rows", f.rows, "queued", f.queued)
	}
}
