package pg

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// countedSQL follows the CTEs of a single statement, and journals its counts.
const countedSQL = `,
journal AS (
  INSERT INTO maintenance.run_counts (run_id, name, n)
  SELECT r.id, c.name, c.n FROM (SELECT nullif({run}::text, '')::uuid) AS r (id) CROSS JOIN (VALUES {counts}) AS c (name, n)
  WHERE r.id IS NOT NULL AND c.n > 0
)`

// Journaled puts the journal of counts, as "('name', number)", into a statement. The statement's
// parameter at this place is the run, or "".
func Journaled(sql, counts string, place int) string {
	return stmt.Fill(sql, "{journal}", stmt.Fill(countedSQL, "{run}", fmt.Sprintf("$%d", place), "{counts}", counts))
}

const journalSQL = `
INSERT INTO maintenance.run_counts (run_id, name, n)
SELECT $1::text::uuid, c.name, c.n FROM unnest($2::text[], $3::bigint[]) AS c (name, n)`

// journal holds the counts of a transaction.
type journal struct {
	names []string
	n     []int64
}

// Count journals, with the commit, the transaction's addition to a count of its run. A table after
// the name is the table of these rows.
func (j *journal) Count(name string, n int) {
	if n > 0 {
		j.names, j.n = append(j.names, name), append(j.n, int64(n))
	}
}

// queue puts the journal into a batch. A job has no counts.
func (j *journal) queue(batch *pgx.Batch, by fencing.Source) {
	if len(j.names) > 0 && by.RunID != "" {
		batch.Queue(journalSQL, by.RunID, j.names, j.n)
	}
}
