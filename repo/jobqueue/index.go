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

// IndexJobs makes our own index on River's table of jobs, unless it is there, and reports whether
// it has. Without it lists and counts of jobs are slow, but right. While it is built, some seconds
// for a million jobs, jobs can be read, but what inserts or works one waits. To be called after
// River's migrations, within [repo.Database.WhileMigrating].
func (d Jobs) IndexJobs(ctx context.Context) (made bool, err error) {
	err = pg.QueryRow(ctx, d.db, "look for the index of the jobs", []any{&made}, jobsIndexedSQL)
	if made = !made; err != nil || !made {
		return false, err
	}
	err = pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) error {
		return pg.ExecAll(ctx, tx, stmt.Statement{SQL: pg.NoTimeoutSQL, Args: nil}, stmt.Statement{SQL: indexJobsSQL, Args: nil})
	})
	return err == nil, pg.Wrap(ctx, d.db, "index the jobs", err)
}
