package repo

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// The counts of a run are saved in main several times a second. What a transaction of a run counts is also
// journaled by the transaction, in maintenance.run_counts of its database, and receipts have the rows that
// were changed: so the counts of a run are made exact whose end was not clean, because its process was killed
// or the answer to a commit was lost. Main has an empty journal row of each such run from its end on. The next
// run of the worker that ends cleanly holds a later lease: it counts once more and deletes the journal.

// countedSQL follows the CTEs of a single statement, and journals its counts.
const countedSQL = `,
journal AS (
  INSERT INTO maintenance.run_counts (run_id, name, n)
  SELECT r.id, c.name, c.n FROM (SELECT nullif({run}::text, '')::uuid) AS r (id) CROSS JOIN (VALUES {counts}) AS c (name, n)
  WHERE r.id IS NOT NULL AND c.n > 0
)`

// journaled puts the journal of counts, as "('name', number)", into a statement whose parameter at this
// place is the run, or "".
func journaled(sql, counts string, place int) string {
	return fill(sql, "{journal}", fill(countedSQL, "{run}", fmt.Sprintf("$%d", place), "{counts}", counts))
}

const journalSQL = `
INSERT INTO maintenance.run_counts (run_id, name, n)
SELECT $1::text::uuid, c.name, c.n FROM unnest($2::text[], $3::bigint[]) AS c (name, n)`

// journal are the counts of a transaction.
type journal struct {
	names []string
	n     []int64
}

// count journals with the commit that the transaction adds to a count of its run; a table behind the name
// says of which table these rows are.
func (j *journal) count(name string, n int) {
	if n > 0 {
		j.names, j.n = append(j.names, name), append(j.n, int64(n))
	}
}

// queue puts the journal into a batch; that of a job has no counts.
func (j *journal) queue(batch *pgx.Batch, by Source) {
	if len(j.names) > 0 && by.RunID != "" {
		batch.Queue(journalSQL, by.RunID, j.names, j.n)
	}
}

// unsettledSQL follows the CTE "ended" of runs whose end is not clean.
const unsettledSQL = `, unsettled AS (
  INSERT INTO maintenance.run_counts (run_id, name, n) SELECT id::uuid, '', 0 FROM ended WHERE NOT dry_run AND {unsettled}
)`

// forgottenSQL also selects what is older than a week: the ids of runs begin with their time.
const forgottenSQL = `run_id = $1::text::uuid OR run_id < (
  lpad(to_hex(floor(extract(epoch FROM now() - interval '7 days') * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid`

const forgetRunCountsSQL = `DELETE FROM maintenance.run_counts WHERE ` + forgottenSQL

// ForgetRunCounts deletes the journal of a run whose counts are final.
func (d *Database) ForgetRunCounts(ctx context.Context, run string) error {
	_, err := d.exec(ctx, "delete the journal of counts", forgetRunCountsSQL, run)
	return err
}

const unsettledRunsSQL = `
WITH forgotten AS (DELETE FROM maintenance.run_counts WHERE ` + forgottenSQL + `)
SELECT ` + runColumns + ` FROM maintenance.runs
WHERE id IN (SELECT run_id FROM maintenance.run_counts WHERE run_id < $1::text::uuid)
  AND worker = $2 AND database = $3 AND state <> 'running'`

// UnsettledRuns deletes the journal of a run whose counts are final, and returns the runs of its lease before
// it whose counts are not: nothing of them can commit any more.
func (d *Database) UnsettledRuns(ctx context.Context, run Run) ([]Run, error) {
	q := newQuery("find runs whose counts are not final", unsettledRunsSQL, run.ID, run.Worker, run.Database)
	return collect(ctx, d, q, scanRun)
}

// runCountsSQL: the rows of the ghost migration's queue are not counted as rows.
const runCountsSQL = `
SELECT split_part(name, ' ', 1), split_part(name, ' ', 2), sum(n)::bigint FROM maintenance.run_counts
WHERE run_id = $1::text::uuid AND name <> '' GROUP BY 1, 2
UNION ALL
SELECT action || '_rows', "table", sum(rows)::bigint FROM maintenance.receipts
WHERE run_id = $1::text::uuid
  AND NOT (worker = 'ghost_user_migration' AND "table" IN ('ghost_user_migrations', 'users_ghost_user_migrations'))
GROUP BY 1, 2`

// RunCount is what the journal or the receipts of a database say of a run.
type RunCount struct {
	Name string
	// Table is of which table these rows are, "" for other counts.
	Table string
	N     int64
}

// RunCounts reads the journal and the receipts of a run in this database.
func (d *Database) RunCounts(ctx context.Context, run string) ([]RunCount, error) {
	return collect(ctx, d, newQuery("read the journal of counts", runCountsSQL, run), pgx.RowToStructByPos[RunCount])
}

// Recount raises the counts of a run to what its databases say, and reports whether any was lower. Rows
// of tables are in counts as far as the worker has such a count.
func (run *Run) Recount(found []RunCount, has func(count string) bool) (raised bool) {
	counts, tables := map[string]int64{}, map[string]TableCount{}
	for _, f := range found {
		if f.Table == "" {
			counts[f.Name] += f.N
			continue
		}
		names := []string{f.Name, "moved_rows", "updated_rows"}
		if i := slices.IndexFunc(names, has); i >= 0 {
			counts[names[i]] += f.N
		}
		t := tables[f.Table]
		t.Table = f.Table
		if f.Name == "deleted_rows" {
			t.Deleted += f.N
		} else {
			t.Updated += f.N
		}
		tables[f.Table] = t
	}
	for name, n := range counts {
		if run.Counts[name] < n {
			run.Counts[name], raised = n, true
		}
	}
	before := run.Tables
	for _, t := range before {
		of := tables[t.Table]
		tables[t.Table] = TableCount{t.Table, max(t.Deleted, of.Deleted), max(t.Updated, of.Updated)}
	}
	run.Tables = nil
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		run.Tables = append(run.Tables, tables[name])
	}
	return raised || !slices.Equal(before, run.Tables)
}

const saveRecountSQL = `
UPDATE maintenance.runs SET counts = $2, tables = $3
WHERE id = $1::text::uuid AND state = $4`

// SaveRecount saves the counts of a run that has ended, unless its process has corrected its end meanwhile.
func (d *Database) SaveRecount(ctx context.Context, run Run) error {
	_, err := d.exec(ctx, "save the counts of a run", saveRecountSQL, run.ID,
		asJSON(nonNil(run.Counts)), asJSON(orEmpty(run.Tables)), run.State)
	return err
}
