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

// KeptError reports that rows stay unchanged without a lock or an error: triggers or rules keep
// them.
type KeptError struct {
	// Rows names their table, or the column by which they were found: "issues.project_id". "" means
	// that the error only names triggers and rules.
	Rows string
	// Intended is the intended change: "deleted", "changed" or "added".
	Intended string
	// By lists the triggers and rules that may keep them, as far as known.
	By []catalog.KeepingTrigger
}

// Values of [KeptError.Intended].
const (
	ToDelete = "deleted"
	ToChange = "changed"
	ToAdd    = "added"
)

// Error returns what keeps the rows, or where to check.
func (e *KeptError) Error() string {
	rows := ""
	if e.Rows != "" {
		rows = fmt.Sprintf("a trigger or rule kept rows of %s from being %s", e.Rows, e.Intended)
	}
	if len(e.By) == 0 {
		return reasons.KeptByTrigger + ": " + rows + ", but raised no error: check the table's triggers and rules"
	}
	if rows != "" {
		rows += ": "
	}
	names := make([]string, len(e.By))
	for i, k := range e.By {
		names[i] = k.String()
	}
	return reasons.KeptByTrigger + ": " + rows + strings.Join(names, ", ") +
		" (exempt these rows, or disable the trigger or rule)"
}

// Public marks the text as safe for clients.
func (e *KeptError) Public() {}

// TypedReason returns KEPT_BY_TRIGGER.
func (e *KeptError) TypedReason() string { return reasons.KeptByTrigger }

// wanted returns the intended change of rows.
func (c Change) wanted() string {
	if c.Delete {
		return ToDelete
	}
	return ToChange
}

// Kept returns the [*KeptError] of rows that a change leaves unchanged.
func (r Rows) Kept(ctx context.Context, c Change) error {
	by, err := catalog.NewSchema(r.Database).KeepingTriggers(ctx, r.Table, c.Delete)
	if err != nil {
		return err
	}
	return &KeptError{Rows: r.String(), Intended: c.wanted(), By: by}
}

// RefusedBy returns the rules of a table that made PostgreSQL refuse a statement, none if the
// reason was another. PostgreSQL refuses our kind of statements on a table with rules.
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

// ExplainKept returns the error of rows that a rule keeps, otherwise err.
func ExplainKept(ctx context.Context, d *pg.Database, err error, t catalog.Table, kept KeptError) error {
	if kept.By = NewSweeps(d).RefusedBy(ctx, err, t, kept.Intended == ToDelete); len(kept.By) > 0 {
		return &kept
	}
	return err
}

// KeptIn returns the [*KeptError] of rows of an application table that a transaction has left
// unchanged.
func KeptIn(ctx context.Context, tx pgx.Tx, table, wanted string) error {
	// Collecting the rows returns the error of the query.
	rows, _ := tx.Query(ctx, catalog.KeepingTriggersSQL, catalog.KeepingArgs(catalog.Table{Name: table}, wanted == ToDelete)...)
	by, err := pgx.CollectRows(rows, catalog.ScanKeeping)
	if err != nil {
		return err
	}
	return &KeptError{Rows: table, Intended: wanted, By: by}
}

// RefuseKept returns a [*KeptError] if staysSQL names a table that still has deleted rows.
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
