package admin

import (
	"context"
	"errors"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Reused returns the records of a table, or of all tables (""), that are held because another row
// has their key now, by database, partition and id.
func (l Admin) Reused(ctx context.Context, table string) ([]FailingRecord, error) {
	if err := l.checkTable(ctx, table); err != nil {
		return nil, err
	}
	return l.failing(ctx, lfk.FailingFilter{Table: table, SQLState: reasons.KeyReused})
}

// DecideReused lets the next run clean the children of the reused keys of a table, or closes their
// records. It returns the number of records for each database that had any. It fails if there were
// none.
func (l Admin) DecideReused(ctx context.Context, table string, clean bool) ([]Retried, error) {
	done := []Retried{}
	if err := l.checkTable(ctx, table); err != nil {
		return done, err
	}
	err := l.each(ctx, func(d *repo.Database) error {
		decide := admin.New(d.Database).KeepReused
		if clean {
			decide = admin.New(d.Database).CleanReused
		}
		n, err := decide(ctx, table)
		if n > 0 {
			done = append(done, Retried{d.Name, n})
		}
		return err
	})
	if err == nil && len(done) == 0 {
		err = noRecord(table, "no held record of "+table+" has a reused key: run `caretaker lfk reused` to list "+
			"the held keys")
	}
	return done, err
}

// checkTable returns [ErrUnknownTable] if no selected database has the table or records of it.
func (l Admin) checkTable(ctx context.Context, table string) error {
	if table == "" {
		return nil
	}
	unknown := l.knownTable(ctx, table)
	if !errors.Is(unknown, ErrUnknownTable) {
		return unknown
	}
	records, err := l.Failing(ctx, table)
	if err == nil && len(records) == 0 {
		err = unknown
	}
	return err
}
