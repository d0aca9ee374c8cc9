package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

const (
	jobsIndexedSQL = `
SELECT num_nulls(to_regclass('maintenance.river_job_by_kind_and_state'), to_regclass('maintenance.river_job_by_time')) = 0`
	indexJobsSQL = `
CREATE INDEX IF NOT EXISTS river_job_by_kind_and_state ON maintenance.river_job (kind, state, id)`
	indexJobTimesSQL = `
CREATE INDEX IF NOT EXISTS river_job_by_time ON maintenance.river_job (created_at)`
)

// IndexJobs creates our indexes on River's table of jobs, unless both exist, and reports whether it
// did. Without them lists and counts of jobs are slow, but correct. Building them takes some
// seconds for a million jobs. Meanwhile jobs can be read, but inserting or running one waits. Call
// it after River's migrations, within [repo.Database.WhileMigrating].
func (d Jobs) IndexJobs(ctx context.Context) (made bool, err error) {
	err = pg.QueryRow(ctx, d.db, "check for the job indexes", []any{&made}, jobsIndexedSQL)
	if made = !made; err != nil || !made {
		return false, err
	}
	err = pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) error {
		return pg.ExecAll(ctx, tx, stmt.Statement{SQL: pg.NoTimeoutSQL, Args: nil},
			stmt.Statement{SQL: indexJobsSQL, Args: nil}, stmt.Statement{SQL: indexJobTimesSQL, Args: nil})
	})
	return err == nil, pg.Wrap(ctx, d.db, "create the job indexes", err)
}
