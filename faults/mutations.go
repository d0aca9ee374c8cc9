package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// change replaces a text that occurs once in a file of the source.
type change struct{ file, before, after string }

// mutation is a defect that is injected to see whether it is found.
type mutation struct {
	name    string
	changes []change
}

// mutations are defects of each kind against which caretaker promises something. They are compiled in
// place of the source, which has no trace of them.
func mutations() []mutation {
	return []mutation{
		{"the epoch is not checked before a write", []change{{
			"repo/guard.go", "WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"WHERE name = {name} AND {holder}::text IS NOT NULL AND {epoch}::bigint IS NOT NULL\n  FOR SHARE",
		}}},
		{"a guard does not lock the lease", []change{{
			"repo/guard.go", "AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"AND epoch = {epoch} AND expires_at > clock_timestamp()",
		}}},
		{"an expired lease lets its holder write", []change{{
			"repo/guard.go", "WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"WHERE name = {name} AND holder = {holder} AND epoch = {epoch}\n  FOR SHARE",
		}}},
		{"an attempt that is over may write", []change{{
			"repo/guard.go", "WHERE id = {job} AND state = 'running' AND attempted_at = {attempted}\n    AND",
			"WHERE id = {job} AND {attempted}::timestamptz IS NOT NULL\n    AND",
		}}},
		{"a lease is taken before it has expired", []change{{
			// Of a lease of 12 s less than 11 s are always left for a part of the time.
			"repo/lease.go", "const freeSQL = `(l.expires_at > clock_timestamp()) IS NOT TRUE`",
			"const freeSQL = `(l.expires_at > clock_timestamp() + interval '11 s') IS NOT TRUE`",
		}, {
			"repo/lease.go", "SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp())`",
			"SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp() + interval '11 s')`",
		}}},
		{"a fire is claimed twice", []change{{
			"repo/runs_start.go", "AND (accounted_until = $8 OR ` + noLedgerTimeSQL + `)\n  RETURNING worker",
			"AND ($8::timestamptz IS NOT NULL OR ` + noLedgerTimeSQL + `)\n  RETURNING worker",
		}, {
			"repo/runs_start.go", "WHERE c.outcome = 'missed'", "WHERE c.outcome <> ''",
		}}},
		{"a release frees the successor", []change{{
			"repo/lease.go", "WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now()`",
			"WHERE name = $1 AND $2::text <> '' AND $3::bigint > 0 AND expires_at > now()`",
		}}},
		{"a job is queued outside its transaction", []change{{
			"repo/placeholder_user_cleanup.go", "		claim.Scheduled, err = to.Queue.InsertJobs(ctx, tx, to.jobs(page.rules, rows))\n		return err\n",
			"		return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) (err error) {\n" +
				"			claim.Scheduled, err = to.Queue.InsertJobs(ctx, tx, to.jobs(page.rules, rows))\n			return err\n		})\n",
		}}},
		{"a job is queued that waits already", []change{{
			"scheduler/queue_insert.go", "	if _, special := j.Args.(repo.UniqueWhileWaiting); !special {\n		opts.",
			"	if _, special := j.Args.(repo.UniqueWhileWaiting); !special && opts == nil {\n		opts.",
		}}},
		{"a cursor is saved too early", []change{{
			"repo/inactive_token_deletion_pass.go", "	err = d.transaction(ctx, operation, p, func(ctx context.Context, tx *changing) (err error) {\n",
			"	err = d.write(ctx, p, newQuery(operation, advanceTokenPassSQL, pass, step.Last, 0, 0, false), &advanced)\n" +
				"	if err != nil {\n		return 0, err\n	}\n" +
				"	err = d.transaction(ctx, operation, p, func(ctx context.Context, tx *changing) (err error) {\n",
		}}},
		{"a record is removed before its last child", []change{{
			"service/loosefk/statement.go", "	if !last || t.task.child.Database", "	_ = last\n	if t.task.child.Database",
		}}},
		{"a receipt is left out", []change{{
			"repo/receipts.go", "	for _, n := range tx.noted {\n		s :=", "	for _, n := range tx.noted[:len(tx.noted)-1] {\n		s :=",
		}}},
	}
}

// prove builds in one defect after the other, and plays rounds until it is found.
func prove(ctx context.Context, o options, report, progress io.Writer) error {
	fmt.Fprintln(report, "| defect | found in round | by |\n|---|---|---|")
	o.proving = true
	missed := 0
	for _, m := range mutations() {
		if o.mutation != "" && o.mutation != m.name {
			continue
		}
		found, err := o.find(ctx, m, report, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if !found {
			missed++
			fmt.Fprintf(report, "| %s | **not in %d** | |\n", m.name, o.bound)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d defects were not found", missed)
	}
	return nil
}

func (o options) find(ctx context.Context, m mutation, report, progress io.Writer) (bool, error) {
	dir, err := os.MkdirTemp(o.dir, "mutation-")
	if err != nil {
		return false, err
	}
	program, err := build(ctx, dir, m.changes...)
	if err != nil {
		return false, err
	}
	for n := range o.bound {
		violations, err := play(ctx, o, program, o.seed+uint64(n), newTally())
		if err != nil {
			return false, err
		}
		fmt.Fprintf(progress, "%s: seed %d: %d violations\n", m.name, o.seed+uint64(n), len(violations))
		if len(violations) > 0 {
			fmt.Fprintf(report, "| %s | %d | %.60s |\n", m.name, n+1, violations[0])
			return true, os.RemoveAll(dir)
		}
	}
	return false, os.RemoveAll(dir)
}
