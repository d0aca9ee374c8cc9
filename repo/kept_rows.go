package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// StubbornError means that rows of a table (found by a column: "issues.project_id") were to be deleted, or if Kept changed,
// or if Missing added, were not, and no error was reported.
type StubbornError struct {
	Table         string
	Kept, Missing bool
	// Keepers are what may have kept them, as far as that is known.
	Keepers []KeepingTrigger
}

// Error says where to look.
func (e *StubbornError) Error() string {
	what := "deleted"
	switch {
	case e.Kept:
		what = "changed"
	case e.Missing:
		what = "added"
	}
	rows := fmt.Sprintf("rows of %s do not let themselves be %s", e.Table, what)
	if len(e.Keepers) == 0 {
		return rows + ", though no error is reported: look at the table's triggers"
	}
	return ReasonKeptByTrigger + ": " + rows + ": " + keptBy(e.Keepers)
}

// Kept is the [*StubbornError] of rows that a change leaves as they are.
func (r Rows) Kept(ctx context.Context, c Change) error {
	keepers, err := r.Database.KeepingTriggers(ctx, r.Table, c.Delete)
	if err != nil {
		return err
	}
	return &StubbornError{Table: r.String(), Kept: !c.Delete, Keepers: keepers}
}

// ruled is the [*StubbornError] of rows that a rule keeps: PostgreSQL refuses statements such as ours for a table with one.
func (d *Database) ruled(ctx context.Context, err error, t Table, stubborn StubbornError) error {
	if refused, is := errors.AsType[*Error](err); !is || refused.SQLState != "0A000" {
		return err
	}
	keepers, lookErr := d.KeepingTriggers(ctx, t, !stubborn.Kept)
	stubborn.Keepers = slices.DeleteFunc(keepers, func(k KeepingTrigger) bool { return !k.Rule() })
	if lookErr != nil || len(stubborn.Keepers) == 0 {
		return err
	}
	return &stubborn
}

// stubborn is the [*StubbornError] of rows of a table of the application that a transaction has deleted, or if not deletes
// changed, in vain.
func stubborn(ctx context.Context, tx pgx.Tx, table string, deletes bool) error {
	rows, _ := tx.Query(ctx, keepingTriggersSQL, keepingArgs(Table{Name: table}, deletes)...) // its error is that of the rows
	keepers, err := pgx.CollectRows(rows, scanKeeping)
	if err != nil {
		return err
	}
	return &StubbornError{Table: table, Kept: !deletes, Keepers: keepers}
}

// refuseStubborn is a [*StubbornError] if such a query names a table that still has rows that were deleted.
func refuseStubborn(ctx context.Context, tx pgx.Tx, staysSQL string, args ...any) error {
	var table string
	err := tx.QueryRow(ctx, staysSQL, args...).Scan(&table)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = stubborn(ctx, tx, table, true)
	}
	return err
}
