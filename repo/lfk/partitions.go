package lfk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Partitions of a queue that caretaker made. Every step is one transaction that waits at most 100
// ms for each lock, so that it delays no deletion of the application for longer.

// PartitionLimits returns the limits of each statement of a step on partitions.
func PartitionLimits() fencing.Limits {
	return fencing.Limits{Statement: 2 * time.Second, Lock: 100 * time.Millisecond}
}

// leavesOfGitLab is the schema where GitLab has its partitions.
const leavesOfGitLab = "gitlab_partitions_dynamic"

// addLeaves reads the schemas and bounds of the leaves. The newest leaf's schema is the next one's.
func (q *DeletedRecords) addLeaves(leaves [][]string) {
	q.Leaves = len(leaves)
	newest := int64(math.MinInt64)
	for _, leaf := range leaves {
		schema, bounds := leaf[0], leaf[1]
		q.HasDefault = q.HasDefault || bounds == "DEFAULT"
		list, ok := strings.CutPrefix(bounds, "FOR VALUES IN ")
		if !ok {
			continue
		}
		numbers := strings.FieldsFunc(list, func(r rune) bool { return r != '-' && (r < '0' || r > '9') })
		for i, n := range numbers {
			number, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				continue // the bounds are not those of a list of numbers
			}
			q.Partitions = append(q.Partitions, number)
			if i == 0 && number > newest {
				newest, q.leafSchema = number, schema
			}
		}
	}
	slices.Sort(q.Partitions)
}

// createLeafSQL creates a partition. Records are removed by DELETE, so vacuum must keep up.
const createLeafSQL = `
CREATE TABLE {leaf} PARTITION OF {queue} FOR VALUES IN ({number})
WITH (autovacuum_vacuum_scale_factor = 0.01)`

// CreatePartition creates a partition and marks it as active from now on.
func CreatePartition(ctx context.Context, tx pgx.Tx, q DeletedRecords, number int64) error {
	return pg.ExecAll(ctx, tx, stmt.Statement{SQL: createLeaf(q, number), Args: nil},
		stmt.Statement{SQL: markPartitionSQL, Args: []any{number}})
}

// createLeaf returns the statement that creates a partition in the schema of the newest one.
func createLeaf(q DeletedRecords, number int64) string {
	return stmt.Fill(createLeafSQL, "{leaf}", stmt.Quote(q.leafSchema,
		fmt.Sprintf("%s_%d", q.Name, number)),
		"{queue}", q.SQL, "{number}", strconv.FormatInt(number, 10))
}

// markPartitionSQL records since when a partition is active, by the clock of its database.
const markPartitionSQL = `
INSERT INTO maintenance.queue_partitions (partition, active_since) VALUES ($1, now())
ON CONFLICT (partition) DO UPDATE SET active_since = EXCLUDED.active_since`

// RepairPartition creates the partition that new records are sent to if it is missing: without it
// every deletion from a tracked table fails. It returns whether it was missing. It does nothing and
// returns false if the queue is not [DeletedRecords.Repairable].
func (d Queue) RepairPartition(
	ctx context.Context, p fencing.Permit, q DeletedRecords,
) (repaired bool, err error) {
	if !q.Repairable() {
		return false, nil
	}
	err = pg.Transaction(ctx, d.db, "repair the queue's active partition", p,
		func(ctx context.Context, tx *pg.Changing) error {
			return CreatePartition(ctx, tx, q, q.Active)
		})
	return err == nil, err
}

// rollDueSQL skips an unwritten partition, whose file is empty, however long it has been active. It
// skips a queue of another owner, whose partitions our role cannot roll.
const rollDueSQL = `
SELECT p.active_since <= now() - interval '24 hours' AND pg_relation_size(leaf.oid) > 0
  AND pg_has_role((SELECT relowner FROM pg_class WHERE oid = to_regclass($2)), 'USAGE')
FROM maintenance.queue_partitions p
JOIN pg_inherits i ON i.inhparent = to_regclass($2)
JOIN pg_class leaf ON leaf.oid = i.inhrelid AND pg_get_expr(leaf.relpartbound, leaf.oid)
  IN (format('FOR VALUES IN (%s)', $1::bigint), format('FOR VALUES IN (''%s'')', $1::bigint))
WHERE p.partition = $1`

// RollPartition lets new records go to a new partition once the active one has been active for 24
// hours and was written to. It returns the new partition's number, 0 if nothing was due. It locks
// the queue exclusively for the time of one transaction, so deletions from tracked tables wait.
func (d Queue) RollPartition(ctx context.Context, p fencing.Permit, q DeletedRecords) (next int64, err error) {
	var due bool
	err = pg.QueryRow(ctx, d.db, "read the active partition", []any{&due}, rollDueSQL, q.Active, q.SQL)
	if errors.Is(err, dberr.ErrNotFound) || (err == nil && !due) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	next = slices.Max(q.Partitions) + 1
	err = pg.Transaction(ctx, d.db, "roll the queue's "+
		"partition", p, func(ctx context.Context, tx *pg.Changing) error {
		return pg.ExecAll(ctx, tx,
			stmt.Statement{SQL: "LOCK TABLE ONLY " + q.SQL + " IN ACCESS EXCLUSIVE MODE", Args: nil},
			stmt.Statement{SQL: createLeaf(q, next), Args: nil},
			stmt.Statement{
				SQL:  fmt.Sprintf("ALTER TABLE ONLY %s ALTER COLUMN partition SET DEFAULT %d", q.SQL, next),
				Args: nil,
			},
			stmt.Statement{SQL: markPartitionSQL, Args: []any{next}})
	})
	if err != nil {
		return 0, err
	}
	return next, nil
}

// emptyPartitionsSQL ignores other statuses: a queue of our own does not use such records.
const emptyPartitionsSQL = `
SELECT number, format('%I.%I', n.nspname, leaf.relname)
FROM unnest($1::bigint[]) AS number
JOIN pg_inherits i ON i.inhparent = to_regclass($2)
JOIN pg_class leaf ON leaf.oid = i.inhrelid AND pg_get_expr(leaf.relpartbound, leaf.oid)
  IN (format('FOR VALUES IN (%s)', number), format('FOR VALUES IN (''%s'')', number))
JOIN pg_namespace n ON n.oid = leaf.relnamespace
WHERE (
  SELECT true FROM {queue} q WHERE q.partition = number AND q.status = 1
  ORDER BY q.fully_qualified_table_name LIMIT 1) IS NULL
ORDER BY number`

// partitionStillPendingSQL reports whether a partition has a pending record, which is status 1.
const partitionStillPendingSQL = `
SELECT EXISTS (
  SELECT FROM {queue} WHERE partition = $1 AND status = 1
  ORDER BY fully_qualified_table_name LIMIT 1)`

// forgetFailuresSQL deletes the failures of a dropped partition's records.
const forgetFailuresSQL = `DELETE FROM maintenance.record_failures WHERE partition = $1`

// forgetTracesSQL deletes the traces of a dropped partition's records.
const forgetTracesSQL = `DELETE FROM maintenance.record_traces WHERE partition = $1`

// unmarkPartitionSQL deletes the time since which a dropped partition was active.
const unmarkPartitionSQL = `DELETE FROM maintenance.queue_partitions WHERE partition = $1`

// DropPartitions drops every partition without pending records, at any position, except the active
// and the highest one. It returns their numbers. A partition that cannot be locked within 100 ms
// stays for the next run. err joins the errors of all partitions. dropped may still have some if
// err is not nil.
func (d Queue) DropPartitions(
	ctx context.Context, p fencing.Permit, q DeletedRecords,
) (dropped []int64, err error) {
	candidates := slices.DeleteFunc(slices.Clone(q.Partitions), func(n int64) bool {
		return n == q.Active || n == slices.Max(q.Partitions)
	})
	if len(candidates) == 0 {
		return nil, nil
	}
	type leaf struct {
		Number int64
		Name   string
	}
	find := pg.NewQuery("find empty partitions", stmt.Fill(emptyPartitionsSQL, "{queue}", q.SQL), candidates,
		q.SQL)
	empty, err := pg.Collect(ctx, d.db, find, pgx.RowToStructByPos[leaf])
	// Each partition has its own transaction, so one that is locked does not keep the others.
	for _, l := range empty {
		operation, done := fmt.Sprintf("drop partition %d of the queue", l.Number), false
		dropErr := pg.Transaction(ctx, d.db, operation, p, func(ctx context.Context, tx *pg.Changing) (err error) {
			done, err = dropIfEmpty(ctx, tx, q, l.Number, l.Name)
			return err
		})
		if dropErr == nil && done {
			dropped = append(dropped, l.Number)
		}
		err = errors.Join(err, dropErr)
	}
	return dropped, err
}

// dropIfEmpty checks again under the partition's lock: a deletion that was uncommitted at the first
// check may have committed. Only then it locks the queue, which every deletion of the application
// needs, for the time of the drop.
func dropIfEmpty(
	ctx context.Context, tx pgx.Tx, q DeletedRecords, number int64, leaf string,
) (dropped bool, err error) {
	if err := pg.ExecAll(ctx, tx, stmt.Statement{
		SQL:  "LOCK TABLE " + leaf + " IN ACCESS EXCLUSIVE MODE",
		Args: nil,
	}); err != nil {
		return false, err
	}
	var pending bool
	err = tx.QueryRow(ctx, stmt.Fill(partitionStillPendingSQL, "{queue}", q.SQL), number).Scan(&pending)
	if err != nil || pending {
		return false, err
	}
	err = pg.ExecAll(ctx, tx,
		stmt.Statement{SQL: "LOCK TABLE ONLY " + q.SQL + " IN ACCESS EXCLUSIVE MODE", Args: nil},
		stmt.Statement{SQL: "DROP TABLE " + leaf, Args: nil}, stmt.Statement{SQL: unmarkPartitionSQL, Args: []any{number}},
		stmt.Statement{SQL: forgetFailuresSQL, Args: []any{number}}, stmt.Statement{SQL: forgetTracesSQL, Args: []any{number}})
	return err == nil, err
}

// queueOwnerSQL returns the quoted owner of the queue, and whether our role has the owner's rights.
const queueOwnerSQL = `
SELECT quote_ident(pg_get_userbyid(c.relowner)), pg_has_role(c.relowner, 'USAGE')
FROM pg_class c WHERE c.oid = to_regclass($1)`

// RollsQueue returns the owner of the queue if caretaker made the queue and must roll its
// partitions, but our role has no permission to. Otherwise it returns "".
func (d Queue) RollsQueue(ctx context.Context) (owner string, err error) {
	q, err := d.DeletedRecordsShape(ctx)
	if err != nil || !q.Managed || !q.Exists {
		return "", err
	}
	var may bool
	err = pg.QueryRow(ctx, d.db, "read the owner of the queue", []any{&owner, &may}, queueOwnerSQL, q.SQL)
	if may {
		owner = ""
	}
	return owner, err
}
