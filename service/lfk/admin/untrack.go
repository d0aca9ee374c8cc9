package admin

import (
	"context"
	"errors"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// Untracked is the result of Untrack in one database.
type Untracked struct {
	Database string `json:"database"`
	admin.Untracked
	// Unfed lists the definitions that get no more records.
	Unfed []string `json:"unfed"`
	// Discarded is the number of deleted records, which no definition needs.
	Discarded int64 `json:"discarded_records,omitempty"`
}

// Untrack drops the triggers that record deletions from a table, or from one partition, in all
// databases that track it. With Discard it then deletes the table's records if no definition needs
// them.
func (l Admin) Untrack(ctx context.Context, table string) ([]Untracked, error) {
	done := []Untracked{}
	var refused []error
	known := false
	err := l.each(ctx, func(d *repo.Database) error {
		untracked, err := l.untrack(ctx, d, table)
		no, ok := errors.AsType[*admin.RefusedError](err)
		known = known || !ok || !no.NoTable
		switch {
		case ok:
			refused = append(refused, err)
			return nil
		case err == nil:
			done = append(done, untracked)
		}
		return err
	})
	switch {
	case err != nil || len(done) > 0:
	case !known:
		err = l.unknownTable(ctx, table)
	default:
		err = errors.Join(refused...)
	}
	return done, err
}

// untrack is Untrack in one database.
func (l Admin) untrack(
	ctx context.Context, d *repo.Database, table string,
) (done Untracked, err error) {
	done = Untracked{Database: d.Name, Unfed: []string{}}
	at := admin.New(d.Database)
	schema, err := d.ApplicationSchema(ctx)
	if err != nil {
		return done, err
	}
	recorded, discard := catalog.RecordedName(table, schema), false
	if l.Discard {
		if discard, err = l.unneeded(ctx, d, recorded); err != nil {
			return done, err
		}
	}
	if discard {
		at = admin.Unneeded(at)
	}
	done.Untracked, err = at.Untrack(ctx, table)
	if done.Parent != "" {
		done.Unfed = l.fedBy(done.Table, schema)
	}
	_, refused := errors.AsType[*admin.RefusedError](err)
	if !discard || err != nil && !refused {
		return done, err
	}
	n, discardErr := admin.Discard(ctx, at, recorded)
	if done.Discarded = n; discardErr != nil {
		return done, discardErr
	}
	if refused && n > 0 {
		// The records of a table that is no longer tracked.
		done.Table, done.Triggers, err = recorded, []string{}, nil
	}
	return done, err
}

// unneeded reports whether a table, by its recorded name, has no definition and no adopted foreign
// key.
func (l Admin) unneeded(ctx context.Context, d *repo.Database, recorded string) (bool, error) {
	schema, err := d.ApplicationSchema(ctx)
	if err != nil || l.Unread || len(l.fedBy(recorded, schema)) > 0 {
		return false, err
	}
	keys, err := d.Capture.AdoptedKeys(ctx)
	return err == nil && !slices.ContainsFunc(keys, func(k capture.AdoptedKey) bool {
		return k.RecordedParent() == recorded
	}), err
}

// Orphaned lists the keys whose children a table's deletions orphan once it is not tracked.
type Orphaned struct {
	// Definitions of the table, and adopted foreign keys to it, as commands name them.
	Definitions, Adopted []string
	// Discarded: the table has records, which no definition needs.
	Discarded bool
}

// OrphanedBy returns what untracking a table would orphan. For a partition, the keys of its table
// count, too. A database that does not track the table counts as one without keys.
func (l Admin) OrphanedBy(ctx context.Context, table string) (o Orphaned, err error) {
	err = l.each(ctx, func(d *repo.Database) error {
		schema, err := d.ApplicationSchema(ctx)
		if err != nil {
			return err
		}
		own := catalog.RecordedName(table, schema)
		recorded, err := admin.New(d.Database).Recorded(ctx, table)
		_, refused := errors.AsType[*admin.RefusedError](err)
		switch {
		case refused:
			o.Discarded, err = l.discards(ctx, d, own, o.Discarded)
			return err
		case err != nil:
			return err
		}
		for _, name := range l.fedBy(recorded, schema) {
			if !slices.Contains(o.Definitions, name) {
				o.Definitions = append(o.Definitions, name)
			}
		}
		keys, err := d.Capture.AdoptedKeys(ctx)
		for _, k := range keys {
			if k.RecordedParent() == recorded {
				o.Adopted = append(o.Adopted, k.Named())
			}
		}
		if err == nil {
			o.Discarded, err = l.discards(ctx, d, own, o.Discarded)
		}
		return err
	})
	return o, err
}

// discards reports whether a table has records that Untrack deletes, or already is true.
func (l Admin) discards(
	ctx context.Context, d *repo.Database, recorded string, already bool,
) (bool, error) {
	unneeded, err := l.unneeded(ctx, d, recorded)
	if err != nil || !unneeded || already {
		return already, err
	}
	return admin.HasRecords(ctx, admin.New(d.Database), recorded)
}

// fedBy returns the definitions of a parent by its recorded name. schema is the application's.
func (l Admin) fedBy(recorded, schema string) []string {
	names := []string{}
	if l.Definitions == nil {
		return names
	}
	for _, k := range l.Definitions.Keys {
		if catalog.RecordedName(k.Parent, schema) == recorded {
			names = append(names, k.String())
		}
	}
	return names
}
