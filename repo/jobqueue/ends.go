package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

const (
	// jobEndsKeptSQL reports whether the trigger exists.
	jobEndsKeptSQL = `
SELECT EXISTS (
  SELECT FROM pg_trigger
  WHERE tgrelid = 'maintenance.river_job'::regclass AND tgname = 'caretaker_keep_end')`

	// keepJobEndsSQL: the statement that finishes a job sets its outcome and reason.
	keepJobEndsSQL = `
CREATE OR REPLACE FUNCTION maintenance.keep_job_end() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
  NEW.metadata := NEW.metadata || jsonb_strip_nulls(jsonb_build_object(
    'outcome', OLD.metadata -> 'outcome', 'reason', OLD.metadata -> 'reason'));
  RETURN NEW;
END $$`
	// keepJobEndsTriggerSQL creates a trigger for updates of a job that has ended before and after.
	keepJobEndsTriggerSQL = `
CREATE TRIGGER caretaker_keep_end BEFORE UPDATE OF metadata ON maintenance.river_job FOR EACH ROW
WHEN (OLD.finalized_at IS NOT NULL AND NEW.finalized_at IS NOT NULL)
EXECUTE FUNCTION maintenance.keep_job_end()`
)

// KeepJobEnds creates the trigger that keeps outcome and reason of a finished job, if it is
// missing, and reports whether it created it. River stores the end of an attempt with its job
// regardless of the job's state. If main was down, that is seconds after another attempt has
// finished the job. Call it after River's migrations, within [repo.Database.WhileMigrating].
func (d Jobs) KeepJobEnds(ctx context.Context) (made bool, err error) {
	err = pg.QueryRow(ctx, d.db, "check for the job trigger", []any{&made}, jobEndsKeptSQL)
	if made = !made; err != nil || !made {
		return false, err
	}
	err = pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) error {
		return pg.ExecAll(ctx, tx, stmt.Statement{SQL: pg.NoTimeoutSQL, Args: nil}, stmt.Statement{SQL: keepJobEndsSQL, Args: nil},
			stmt.Statement{SQL: keepJobEndsTriggerSQL, Args: nil})
	})
	return err == nil, pg.Wrap(ctx, d.db, "create the job trigger", err)
}
