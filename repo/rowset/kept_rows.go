package rowset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// KeptError means that rows stay as they are although nobody has locked them, and no error was
// reported: triggers or rules keep them.
type KeptError struct {
	// Rows names their table, or the column by which they were found: "issues.project_id". It is ""
	// where only what keeps them is to be named.
	Rows string
	// Wanted is what they were to be: "deleted", "changed" or "added".
	Wanted string
	// By is what may keep them, as far as that is known.
	By []catalog.KeepingTrigger
}

// What rows were to be that something keeps.
const (
	ToDelete = "deleted"
	ToChange = "changed"
	ToAdd    = "added"
)

// Error says what keeps the rows, or where to look.
func (e *KeptError) Error() string {
	rows := ""
	if e.Rows != "" {
		rows = fmt.Sprintf("a trigger or rule kept rows of %s from being %s", e.Rows, e.Wanted)
	}
	if len(e.By) == 0 {
		return rows + ", though no error is reported: look at the table's triggers"
	}
	if rows != "" {
		rows += ": "
	}
	names := make([]string, len(e.By))
	for i, k := range e.By {
		names[i] = k.String()
	}
	return reasons.KeptByTrigger + ": " + rows + strings.Join(names, ", ") +
		" (let it pass these rows, or disable it)"
}

// Public says that the text is fit for clients.
func (e *KeptError) Public() {}

// TypedReason is KEPT_BY_TRIGGER.
func (e *KeptError) TypedReason() string { return reasons.KeptByTrigger }

// wanted is what rows are to be.
func (c Change) wanted() string {
	if c.Delete {
		return ToDelete
	}
	return ToChange
}

// Kept is the [*KeptError] of rows that a change leaves as they are.
func (r Rows) Kept(ctx context.Context, c Change) error {
	by, err := catalog.NewSchema(r.Database).KeepingTriggers(ctx, r.Table, c.Delete)
	if err != nil {
		return err
	}
	return &KeptError{Rows: r.String(), Wanted: c.wanted(), By: by}
}

// RefusedBy are the rules of a table for which a statement was refused, none if it was refused for
// another reason: PostgreSQL refuses statements such as ours for a table with rules.
func (d Sweeps) RefusedBy(
	ctx context.Context, err error, t catalog.Table, deletes bool,
) []catalog.KeepingTrigger {
	if refused, ok := errors.AsType[*dberr.Error](err); !ok || refused.SQLState != "0A000" {
		return nil
	}
	// If this query fails, the original error is enough.
	by, _ := catalog.NewSchema(d.db).KeepingTriggers(ctx, t, deletes)
	return slices.DeleteFunc(by, func(k catalog.KeepingTrigger) bool { return !k.Rule() })
}

// ExplainKept is the error of rows that a rule keeps, and otherwise err.
func ExplainKept(ctx context.Context, d *pg.Database, err error, t catalog.Table, kept KeptError) error {
	if kept.By = NewSweeps(d).RefusedBy(ctx, err, t, kept.Wanted == ToDelete); len(kept.By) > 0 {
		return &kept
	}
	return err
}

// KeptIn is the [*KeptError] of rows of a table of the application that a transaction has left as
// they are.
func KeptIn(ctx context.Context, tx pgx.Tx, table, wanted string) error {
	// The error of the query is that of its rows.
	rows, _ := tx.Query(ctx, catalog.KeepingTriggersSQL, catalog.KeepingArgs(catalog.Table{Name: table}, wanted == ToDelete)...)
	by, err := pgx.CollectRows(rows, catalog.ScanKeeping)
	if err != nil {
		return err
	}
	return &KeptError{Rows: table, Wanted: wanted, By: by}
}

// RefuseKept is a [*KeptError] if such a query names a table that still has rows that were deleted.
func RefuseKept(ctx context.Context, tx pgx.Tx, staysSQL string, args ...any) error {
	var table string
	err := tx.QueryRow(ctx, staysSQL, args...).Scan(&table)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = KeptIn(ctx, tx, table, ToDelete)
	}
	return err
}
