package neighbours_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestNeighbour_AJobOfCronDeletesTheChildrenOfTheRun(t *testing.T) {
	t.Parallel()
	need(t, "pg_cron")
	e, server := newServer(t, map[string]string{"shared_preload_libraries": "pg_cron", "cron.use_background_workers": "on"},
		`CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 10);`+plainChild+childrenOfAll)
	e.Exec("main", `DELETE FROM p WHERE id < 9`)
	postgres := assert.Must(pgx.Connect(t.Context(), server.Cluster.URL("postgres")))(t)
	defer func() { assert.NoError(t, postgres.Close(t.Context())) }()
	release := e.Hold(`SELECT pg_advisory_xact_lock(1)`)
	// The job has deleted the children of 4 to 8, and does not commit before the lock is free.
	assert.Must(postgres.Exec(t.Context(), `CREATE EXTENSION pg_cron; SELECT cron.schedule_in_database('job', '* * * * *', $$
		WITH gone AS (DELETE FROM c WHERE p_id > 3 AND NOT EXISTS (SELECT FROM p WHERE p.id = p_id) RETURNING p_id)
		SELECT count(*), pg_advisory_xact_lock(1) FROM gone $$, 'estate')`))(t)
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`, "true")
	// The run deletes what it can have, and leaves the rest to the next one.
	wantRun(e, "processed_records=3 deleted_rows=6 rescheduled_records=5")
	e.WantQueue("main", "4 5 6 7 8")
	release()
	e.Eventually("main", `SELECT count(*) FROM c WHERE p_id > 3`, "4")
	wantEmptied(e)
	wantKeys(e, "9 10")
}
