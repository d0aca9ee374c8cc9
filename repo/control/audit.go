// Package control keeps caretaker's own records of one database: runs, leases, scheduled runs,
// pauses, audit, receipts, and their history. It knows no worker.
package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// AuditEntry is a row of maintenance.audit: a call that was to change something.
type AuditEntry struct {
	ID int64
	// At is when the call started, by the clock of main.
	At                time.Time
	By, Address, Role string
	Action, Target    string
	Reason, Outcome   string
}

const recordAuditSQL = `
INSERT INTO maintenance.audit (by, address, role, action, target, reason, outcome)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id`

// RecordAudit adds an entry and returns its ID. The database sets ID and time.
func (d Audit) RecordAudit(ctx context.Context, e AuditEntry) (id int64, err error) {
	err = pg.QueryRow(ctx, d.db, "record the audit entry", []any{&id}, recordAuditSQL,
		e.By, e.Address, e.Role, e.Action, e.Target, e.Reason, e.Outcome)
	return id, err
}

const completeAuditSQL = `
UPDATE maintenance.audit SET reason = $2, outcome = $3 WHERE id = $1`

// CompleteAudit replaces the reason and the outcome of the entry with this ID.
func (d Audit) CompleteAudit(ctx context.Context, e AuditEntry) error {
	_, err := pg.Exec(ctx, d.db, "complete the audit entry", completeAuditSQL, e.ID, e.Reason, e.Outcome)
	return err
}

// AuditFilter selects entries.
type AuditFilter struct {
	// Since and Until bound the times: Since inclusive, Until exclusive. Zero means no bound.
	Since, Until time.Time
	// By and Action are "" for all.
	By, Action string
	// After and AfterID belong to the last entry of the previous page. Zero means the first page.
	After   time.Time
	AfterID int64
	// Limit is the maximum number of entries.
	Limit int
}

const listAuditSQL = `
SELECT id, at, by, address, role, action, target, reason, outcome FROM maintenance.audit
WHERE ($1::timestamptz IS NULL OR at >= $1) AND ($5::timestamptz IS NULL OR at < $5)
  AND ($6 = '' OR by = $6) AND ($7 = '' OR action = $7)
  AND ($2::timestamptz IS NULL OR (at, id) < ($2, $3::bigint))
ORDER BY at DESC, id DESC LIMIT $4`

// ListAudit reads up to Limit entries, the newest first.
func (d Audit) ListAudit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	q := pg.NewQuery("list audit entries", listAuditSQL, stmt.CustomPlan,
		orNull(f.Since), orNull(f.After), f.AfterID, f.Limit,
		orNull(f.Until), f.By, f.Action)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[AuditEntry])
}
