package devdb

import (
	"context"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// standbyOf starts a cluster with a standby.
func standbyOf(t *testing.T) (primary, standby *Cluster) {
	t.Helper()
	primary = start(t, Config{Ephemeral: true, Dir: memoryDir(), Settings: map[string]string{"synchronous_commit": "on"}})
	standby = assert.Must(primary.Standby(t.Context(), nil))(t)
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return primary, standby
}

// becomes waits for the first row of a query.
func becomes(t *testing.T, url, sql, want string) {
	t.Helper()
	Eventually(t, sql+" to be "+want, func() bool { return column(t, url, sql)[0] == want })
}

func TestFault_Standby_FollowsItsPrimary(t *testing.T) {
	t.Parallel()
	primary, standby := standbyOf(t)
	run(t, primary.URL("postgres"), "CREATE TABLE t AS SELECT 1 AS n")
	becomes(t, standby.URL("postgres"), "SELECT count(*)::text FROM pg_class WHERE relname = 't'", "1")
	run(t, standby.URL("postgres"), "SELECT pg_wal_replay_pause()")
	becomes(t, standby.URL("postgres"), "SELECT pg_get_wal_replay_pause_state()", "paused")
	run(t, primary.URL("postgres"), "INSERT INTO t VALUES (2)")
	becomes(t, standby.URL("postgres"), "SELECT count(*)::text FROM t", "1")
	run(t, standby.URL("postgres"), "SELECT pg_wal_replay_resume()")
	becomes(t, standby.URL("postgres"), "SELECT count(*)::text FROM t", "2")
	assert.Equal(t, column(t, standby.URL("postgres"), "SELECT pg_is_in_recovery()::text")[0], "true", "the standby is none")
}

func TestFault_Standby_KilledIsGoneAndItsPrimaryNot(t *testing.T) {
	t.Parallel()
	primary, standby := standbyOf(t)
	assert.NoError(t, standby.Kill())
	Eventually(t, "the standby is gone", func() bool { return !answers(standby.URL("postgres")) })
	assert.That(t, answers(primary.URL("postgres")), "the primary is gone too")
}
