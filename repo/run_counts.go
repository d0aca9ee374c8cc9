package repo

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// The counts of a run are saved in main several times a second. A statement on records also journals what
// it has changed in its own transaction, in maintenance.run_counts of its database, and receipts have the
// rows that were changed: so the counts of a run whose process was killed can be made exact.

// countedSQL follows the CTEs of a statement on records, and journals its counts.
const countedSQL = `,
journal AS (
  INSERT INTO maintenance.run_counts (run_id, name, n)
  SELECT r.id, c.name, c.n FROM (SELECT {run}::text::uuid) AS r (id) CROSS JOIN (VALUES {counts}) AS c (name, n)
  WHERE r.id IS NOT NULL AND c.n > 0
)`

// journaled puts the journal of counts, as "('name', number)", into a statement whose parameter at this
// place is the run.
func journaled(sql, counts string, place int) string {
	return fill(sql, "{journal}", fill(countedSQL, "{run}", fmt.Sprintf("$%d", place), "{counts}", counts))
}

// runOrNil is the parameter of countedSQL.
func (s Source) runOrNil() any {
	run, _ := s.ids()
	return run
}

// forgetRunCountsSQL also deletes what is older than a week, the journals of runs whose end could not be
// recorded: the ids of runs begin with their time.
const forgetRunCountsSQL = `
DELETE FROM maintenance.run_counts WHERE run_id = $1::text::uuid OR run_id < (
  lpad(to_hex(floor(extract(epoch FROM now() - interval '7 days') * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid`

// ForgetRunCounts deletes the journal of a run whose end is on record.
func (d *Database) ForgetRunCounts(ctx context.Context, run string) error {
	_, err := d.exec(ctx, "delete the journal of counts", forgetRunCountsSQL, run)
	return err
}

const runCountsSQL = `
SELECT name, '', sum(n)::bigint FROM maintenance.run_counts WHERE run_id = $1::text::uuid GROUP BY name
UNION ALL
SELECT CASE action WHEN '` + receiptDeleted + `' THEN 'deleted_rows' ELSE 'updated_rows' END, "table", sum(rows)::bigint
FROM maintenance.receipts WHERE run_id = $1::text::uuid GROUP BY 1, 2`

// RunCount is what the journal or the receipts of a database say of a run.
type RunCount struct {
	Name string
	// Table is empty for a count of the journal.
	Table string
	N     int64
}

// RunCounts reads the journal and the receipts of a run in this database.
func (d *Database) RunCounts(ctx context.Context, run string) ([]RunCount, error) {
	return collect(ctx, d, newQuery("read the journal of counts", runCountsSQL, run), pgx.RowToStructByPos[RunCount])
}

// Recount raises the counts of a run to what its databases say, and reports whether any was lower.
func (run *Run) Recount(found []RunCount) (raised bool) {
	counts, tables := map[string]int64{}, map[string]TableCount{}
	for _, f := range found {
		counts[f.Name] += f.N
		t := tables[f.Table]
		switch t.Table = f.Table; {
		case f.Table == "":
			continue
		case f.Name == "deleted_rows":
			t.Deleted += f.N
		default:
			t.Updated += f.N
		}
		tables[f.Table] = t
	}
	for name, n := range counts {
		if run.Counts[name] < n {
			run.Counts[name], raised = n, true
		}
	}
	for _, t := range run.Tables {
		of := tables[t.Table]
		tables[t.Table] = TableCount{t.Table, max(t.Deleted, of.Deleted), max(t.Updated, of.Updated)}
	}
	run.Tables = nil
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		run.Tables = append(run.Tables, tables[name])
	}
	return raised
}

const saveRecountSQL = `
UPDATE maintenance.runs SET counts = $2, tables = $3
WHERE id = $1::text::uuid AND state = 'failed' AND starts_with(error, ` + abandonedSQL + `)`

// SaveRecount saves the counts of a run that was closed as abandoned.
func (d *Database) SaveRecount(ctx context.Context, run Run) error {
	_, err := d.exec(ctx, "save the counts of an abandoned run", saveRecountSQL, run.ID,
		asJSON(nonNil(run.Counts)), asJSON(orEmpty(run.Tables)))
	return err
}
