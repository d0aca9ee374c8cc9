package control

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// The counts of a run are saved in main several times a second. Each transaction of a run also
// journals its counts, in maintenance.run_counts of its database, and receipts have the changed
// rows. So caretaker can correct the counts of a run that did not end cleanly. Its process was
// killed, or the answer to a commit was lost. From the end of such a run, main has an empty journal
// row for it. The next run of the worker that ends cleanly holds a later lease: it counts again and
// deletes the journal.

// unsettledSQL follows the CTE "ended" of runs that did not end cleanly.
const unsettledSQL = `, unsettled AS (
  INSERT INTO maintenance.run_counts (run_id, name, n) SELECT id::uuid, '', 0 FROM ended WHERE NOT dry_run AND {unsettled}
)`

// forgottenSQL also selects rows older than a week: the ids of runs begin with their time.
const forgottenSQL = `run_id = $1::text::uuid OR run_id < (
  lpad(to_hex(floor(extract(epoch FROM now() - interval '7 days') * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid`

// forgetRunCountsSQL deletes the journal of one run, and journals older than a week.
const forgetRunCountsSQL = `DELETE FROM maintenance.run_counts WHERE ` + forgottenSQL

// ForgetRunCounts deletes the journal of a run whose counts are final.
func (d Runs) ForgetRunCounts(ctx context.Context, run string) error {
	_, err := pg.Exec(ctx, d.db, "delete the saved counts of the run", forgetRunCountsSQL, run)
	return err
}

// unsettledRunsSQL finds the ended runs before $1, of its worker and database, that still have a
// journal.
const unsettledRunsSQL = `
WITH forgotten AS (DELETE FROM maintenance.run_counts WHERE ` + forgottenSQL + `)
SELECT ` + runColumns + ` FROM maintenance.runs
WHERE id IN (SELECT run_id FROM maintenance.run_counts WHERE run_id < $1::text::uuid)
  AND worker = $2 AND database = $3 AND state <> 'running'`

// UnsettledRuns deletes the journal of a run whose counts are final. It returns the previous runs
// of its lease whose counts are not final: they can commit nothing more.
func (d Runs) UnsettledRuns(ctx context.Context, run Run) ([]Run, error) {
	q := pg.NewQuery("find runs whose counts are not final", unsettledRunsSQL, run.ID, run.Worker, run.Database)
	return pg.Collect(ctx, d.db, q, scanRun)
}

// runCountsSQL does not count rows of the ghost migration's queue as rows.
const runCountsSQL = `
SELECT split_part(name, ' ', 1), split_part(name, ' ', 2), sum(n)::bigint FROM maintenance.run_counts
WHERE run_id = $1::text::uuid AND name <> '' GROUP BY 1, 2
UNION ALL
SELECT action || '_rows', "table", sum(rows)::bigint FROM maintenance.receipts
WHERE run_id = $1::text::uuid
  AND NOT (worker = 'ghost_user_migration' AND "table" IN ('ghost_user_migrations', 'users_ghost_user_migrations'))
GROUP BY 1, 2`

// RunCount is one count of a run, from the journal or the receipts of a database.
type RunCount struct {
	Name string
	// Table is the table of these rows, "" for other counts.
	Table string
	N     int64
}

// RunCounts reads the journal and the receipts of a run in this database.
func (d Runs) RunCounts(ctx context.Context, run string) ([]RunCount, error) {
	return pg.Collect(ctx, d.db, pg.NewQuery("read the saved counts of the run", runCountsSQL, run), pgx.RowToStructByPos[RunCount])
}

// Recount raises the counts of a run to those of its databases, and reports whether any was lower.
// Rows of tables are added to counts if the worker has such a count.
func (run *Run) Recount(found []RunCount, has func(count string) bool) (raised bool) {
	counts, tables := map[string]int64{}, map[string]jobqueue.TableCount{}
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
		tables[t.Table] = jobqueue.TableCount{Table: t.Table, Deleted: max(t.Deleted, of.Deleted), Updated: max(t.Updated, of.Updated)}
	}
	run.Tables = nil
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		run.Tables = append(run.Tables, tables[name])
	}
	return raised || !slices.Equal(before, run.Tables)
}

// saveRecountSQL changes the run only if its state is still $4.
const saveRecountSQL = `
UPDATE maintenance.runs SET counts = $2, tables = $3
WHERE id = $1::text::uuid AND state = $4`

// SaveRecount saves the counts of an ended run, unless its process has corrected its end meanwhile.
func (d Runs) SaveRecount(ctx context.Context, run Run) error {
	_, err := pg.Exec(ctx, d.db, "save the counts of a run", saveRecountSQL, run.ID,
		asJSON(nonNil(run.Counts)), asJSON(orEmpty(run.Tables)), run.State)
	return err
}
