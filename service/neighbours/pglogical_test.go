package neighbours_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestNeighbour_DeletionsThatPglogicalAppliesAreRecorded(t *testing.T) {
	t.Parallel()
	need(t, "pglogical")
	const parents = `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE later (id bigint PRIMARY KEY);`
	e, server := newServer(t, map[string]string{
		"shared_preload_libraries": "pglogical", "wal_level": "logical", "track_commit_timestamp": "on", "max_worker_processes": "32",
	}, parents+plainChild+`CREATE TABLE d (later_id bigint); CREATE INDEX ON d (later_id)`)
	e.Install("later")
	provider, subscriber := server.Cluster.URL("other"), e.URLs["main"]
	e.URLs["provider"] = provider
	e.SQL["provider"] = e.Connect("provider")
	// Newer minor releases let only the plugins work that they are told to trust.
	if e.Value("main", `SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'`) == "1" {
		e.Exec("main", `ALTER SYSTEM SET output_plugin_libraries = pgoutput, pglogical_output`)
		e.Exec("main", `SELECT pg_reload_conf()`)
	}
	e.Exec("provider", parents+`CREATE EXTENSION pglogical; INSERT INTO p SELECT generate_series(1, 10)`)
	e.Exec("provider", `SELECT pglogical.create_node('provider', $1)`, provider)
	e.Exec("provider", `SELECT pglogical.replication_set_add_table('default', 'p', true)`)
	keys := e.Keys(servicetest.OneChild + "d: [{table: later, column: later_id, on_delete: async_delete}]")
	wantUntracked := func(want int) {
		t.Helper()
		found := 0
		for _, f := range assert.Must(keys.Lint(t.Context()))(t).Findings {
			if f.Code == "trigger_replication" {
				found++
			}
		}
		assert.Equal(t, found, want)
	}
	e.Exec("main", `CREATE EXTENSION pglogical`)
	wantUntracked(0)
	e.Exec("main", `SELECT pglogical.create_node('subscriber', $1)`, subscriber)
	e.Exec("main", `SELECT pglogical.create_subscription('s', $1)`, provider)
	e.Eventually("main", `SELECT count(*) FROM p`, "10")
	// No catalogue of the subscriber has the tables that the provider adds without a copy.
	e.Exec("provider", `SELECT pglogical.replication_set_add_table('default', 'later')`)
	e.Exec("provider", `INSERT INTO later VALUES (1)`)
	e.Eventually("main", `SELECT count(*) FROM later`, "1")
	e.Exec("main", childrenOfAll+`INSERT INTO d VALUES (1)`)
	wantUntracked(2)
	assert.Must(keys.Track(t.Context(), "p"))(t)
	assert.Must(keys.Track(t.Context(), "later"))(t)
	wantUntracked(0)
	e.Exec("provider", `DELETE FROM p WHERE id < 4; DELETE FROM later`)
	e.Eventually("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "4")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild+"d: [{table: later, column: later_id, on_delete: async_delete}]"), "main")
	servicetest.WantCounts(t, r, "processed_records=4 deleted_rows=7")
	wantKeys(e, "4 5 6 7 8 9 10")
}
