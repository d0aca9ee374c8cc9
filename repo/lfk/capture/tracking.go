package capture

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// New partitions of tracked tables get the trigger of the table that they were attached to, so that
// deletions that name them are recorded, too. `caretaker lfk track` decides the form of the
// trigger: runs repeat the table's own.

// newPartitionsSQL finds up to $3 partitions, by name, without their table's trigger. Foreign
// tables cannot have one. If its name would be too long, it is that of the table's own trigger.
// `caretaker lfk lint` reports others of that name. A partition that the operator has untracked by
// its name stays so. pg_trigger is read as a whole, in memory: it has no index on the function.
const newPartitionsSQL = `
SELECT part.oid, n.nspname, part.relname, named.trigger, fn.nspname, f.proname,
  encode(t.tgargs, 'hex')
FROM pg_proc f
JOIN pg_namespace fn ON fn.oid = f.pronamespace AND fn.nspname = current_schema()
JOIN pg_trigger t ON t.tgfoid = f.oid AND t.tgtype = 8 AND t.tgoldtable = 'old_table'
  AND t.tgqual IS NULL AND t.tgnargs > 0 AND t.tgenabled IN ('O', 'A')
JOIN pg_class root ON root.oid = t.tgrelid AND root.relkind = 'p' AND NOT root.relispartition
CROSS JOIN LATERAL pg_partition_tree(root.oid) below
JOIN pg_class part ON part.oid = below.relid AND part.oid <> root.oid AND part.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = part.relnamespace
CROSS JOIN LATERAL (
  SELECT CASE WHEN octet_length(part.relname || $2) <= 63 THEN part.relname || $2
    ELSE t.tgname::text END AS trigger) named
WHERE starts_with(f.proname, $1)
  AND NOT EXISTS (
    SELECT FROM pg_trigger own
    WHERE own.tgrelid = part.oid
      AND (own.tgfoid = f.oid OR own.tgname::text = named.trigger))
  AND NOT EXISTS (
    SELECT FROM maintenance.untracked_partitions u
    WHERE u.schema = n.nspname AND u.name = part.relname)
ORDER BY n.nspname, part.relname LIMIT $3`

// maxNewPartitions is the maximum number of partitions that a run tracks.
const maxNewPartitions = 100

// newPartition is a row of newPartitionsSQL.
type newPartition struct {
	OID                    uint32
	Schema, Name, Trigger  string
	FunctionSchema, Called string
	Arguments              string
}

// String returns the partition with its schema.
func (p newPartition) String() string { return p.Schema + "." + p.Name }

// sql returns the statements that track the partition, after the lock that keeps it attached.
func (p newPartition) sql() []stmt.Statement {
	t := DeleteTrigger{
		Name: p.Trigger, Table: catalog.Table{Schema: p.Schema, Name: p.Name}, Function: catalog.Table{Schema: p.FunctionSchema, Name: p.Called},
		Arguments: TriggerArguments(p.Arguments),
	}
	return []stmt.Statement{{SQL: t.CreateSQL(), Args: nil}, {SQL: t.EnableSQL(), Args: nil}}
}

// TrackPartitions adds triggers to the new partitions of tracked tables, each in its own
// transaction, and returns the names of the tracked partitions. A partition that cannot be locked
// within 100 ms, or is refused, is in the error and stays for the next run.
func (d Capture) TrackPartitions(ctx context.Context, p fencing.Permit) (tracked []string, err error) {
	find := pg.NewQuery("find untracked partitions", newPartitionsSQL, TriggerFunctions, TriggerSuffix,
		maxNewPartitions)
	found, err := pg.ReadRows(ctx, d.db, p.Limits, find, pgx.RowToStructByPos[newPartition])
	for _, part := range found {
		done, trackErr := trackPartition(ctx, d.db, p, part)
		if done {
			tracked = append(tracked, part.String())
		}
		if err = errors.Join(err, trackErr); errors.Is(trackErr, dberr.ErrLeaseLost) {
			break
		}
	}
	return tracked, err
}

// trackPartition checks under a lock whether the partition was detached or tracked meanwhile.
func trackPartition(
	ctx context.Context, d *pg.Database, p fencing.Permit, part newPartition,
) (done bool, err error) {
	err = pg.Transaction(ctx, d, "track partition "+part.String(), p,
		func(ctx context.Context, tx *pg.Changing) error {
			done = false
			lock := "LOCK TABLE ONLY " + stmt.Quote(part.Schema, part.Name) + " IN SHARE ROW EXCLUSIVE MODE"
			if err := pg.ExecAll(ctx, tx, stmt.Statement{SQL: lock, Args: nil}); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, newPartitionsSQL, TriggerFunctions, TriggerSuffix, maxNewPartitions)
			still, err := pgx.CollectRows(rows, pgx.RowToStructByPos[newPartition])
			for _, s := range still {
				done = done || s == part
			}
			if err != nil || !done {
				return err
			}
			return pg.ExecAll(ctx, tx, part.sql()...)
		})
	return done && err == nil, err
}
