package lfk

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// leafParentsSQL reads the recorded table names with pending records in one leaf. It uses a skip
// scan of its partial index: the cost grows with the names, not with the records.
const leafParentsSQL = `
  WITH RECURSIVE parents (name) AS (
    (SELECT fully_qualified_table_name FROM {queue} WHERE partition = leaf.number AND status = 1
     ORDER BY fully_qualified_table_name LIMIT 1)
    UNION ALL
    SELECT (SELECT q.fully_qualified_table_name FROM {queue} q
            WHERE q.partition = leaf.number AND q.status = 1
              AND q.fully_qualified_table_name > p.name
            ORDER BY q.fully_qualified_table_name LIMIT 1)
    FROM parents p WHERE p.name IS NOT NULL
  )`

// dueParentsSQL treats NULL as due: it sorts last. LIMIT 1 keeps the planner from reading all
// records at once, which it may do for EXISTS.
const dueParentsSQL = `
SELECT DISTINCT due.name, {place}, NULL::timestamptz
FROM unnest({partitions}) AS leaf (number)
CROSS JOIN LATERAL (` + leafParentsSQL + `
  SELECT p.name FROM parents p
  CROSS JOIN LATERAL (
    SELECT q.consume_after FROM {queue} q
    WHERE q.partition = leaf.number AND q.status = 1 AND q.fully_qualified_table_name = p.name
    ORDER BY q.consume_after LIMIT 1
  ) oldest
  WHERE oldest.consume_after <= now() OR oldest.consume_after IS NULL OR (
    SELECT true FROM {queue} q
    WHERE q.partition = leaf.number AND q.status = 1 AND q.fully_qualified_table_name = p.name
      AND q.consume_after IS NULL
    ORDER BY q.id LIMIT 1)
) due`

// QueuedParent is a recorded table name, and the indexes of the queue's tables with such records.
// NextTry is when the first of its pending records becomes due, nil if one is due.
type QueuedParent struct {
	Name    string
	Queues  []int
	NextTry *time.Time
}

// DueParents returns the recorded table names that have pending records due now.
func (d Queue) DueParents(ctx context.Context, q DeletedRecords, l fencing.Limits) ([]QueuedParent, error) {
	return q.parents(ctx, d.db, l, "find parents with due records", dueParentsSQL)
}

// pendingParentsSQL treats NULL as due, if no other record of the table is pending in the leaf.
const pendingParentsSQL = `
SELECT pending.name, {place}, nullif(greatest(min(pending.next), now()), now())
FROM unnest({partitions}) AS leaf (number)
CROSS JOIN LATERAL (` + leafParentsSQL + `
  SELECT p.name, (
    SELECT coalesce(q.consume_after, now()) FROM {queue} q
    WHERE q.partition = leaf.number AND q.status = 1 AND q.fully_qualified_table_name = p.name
    ORDER BY q.consume_after LIMIT 1) AS next
  FROM parents p WHERE p.name IS NOT NULL
) pending
GROUP BY pending.name`

// PendingParents returns the recorded table names that have pending records, due or not.
func (d Queue) PendingParents(ctx context.Context, q DeletedRecords, l fencing.Limits) ([]QueuedParent, error) {
	return q.parents(ctx, d.db, l, "find parents with pending records", pendingParentsSQL)
}

func (q *DeletedRecords) parents(
	ctx context.Context, d *pg.Database, l fencing.Limits, operation, sql string,
) (parents []QueuedParent, err error) {
	text := q.Union(sql, "\nUNION ALL")
	if text == "" {
		return nil, nil
	}
	type found struct {
		Name    string
		Queue   int
		NextTry *time.Time
	}
	find := pg.NewQuery(operation, text+"\nORDER BY 1, 2")
	rows, err := pg.ReadRows(ctx, d, l, find, pgx.RowToStructByPos[found])
	for _, r := range rows {
		if n := len(parents); n == 0 || parents[n-1].Name != r.Name {
			parents = append(parents, QueuedParent{Name: r.Name, NextTry: r.NextTry})
		}
		last := &parents[len(parents)-1]
		last.Queues = append(last.Queues, r.Queue)
		if r.NextTry == nil || last.NextTry != nil && r.NextTry.Before(*last.NextTry) {
			last.NextTry = r.NextTry
		}
	}
	return parents, err
}

// ParentNames returns the recorded names of some parents.
func ParentNames(parents []QueuedParent) []string {
	names := make([]string, len(parents))
	for i, p := range parents {
		names[i] = p.Name
	}
	return names
}
