package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

const (
	jobsIndexedSQL = `SELECT to_regclass('maintenance.river_job_by_kind_and_state') IS NOT NULL`
	indexJobsSQL   = `
CREATE INDEX river_job_by_kind_and_state ON maintenance.river_job (kind, state, id)`
)

// IndexJobs creates our index on River's table of jobs, if it is missing, and reports whether it
// created it. Without it lists and counts of jobs are slow, but correct. Building it takes some
// seconds for a million jobs. Meanwhile jobs can be read, but inserting or running one waits. Call
// it after River's migrations, within [repo.Database.WhileMigrating].
func (d Jobs) IndexJobs(ctx context.Context) (made bool, err error) {
	err = pg.QueryRow(ctx, d.db, "check for the job index", []any{&made}, jobsIndexedSQL)
	if made = !made; err != nil || !made {
		return false, err
	}
	err = pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) error {
		return pg.ExecAll(ctx, tx, stmt.Statement{SQL: pg.NoTimeoutSQL, Args: nil}, stmt.Statement{SQL: indexJobsSQL, Args: nil})
	})
	return err == nil, pg.Wrap(ctx, d.db, "create the job index", err)
}
