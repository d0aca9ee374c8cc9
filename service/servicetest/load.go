package servicetest

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/status"
)

// NewLoaded is a main on that cluster with a table c of three rows for each of n deleted parents.
func NewLoaded(t *testing.T, schema string, n int) *Estate {
	t.Helper()
	e := &Estate{T: t, URLs: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	e.Add("main", Loaded.Clone(t, Migrated(schema)))
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % $1 + 1 FROM generate_series(1, 3 * $1) i`, n)
	e.Deleted("main", "p", 1, n)
	return e
}

// LockQueue blocks a session on a lock on a table, and returns when that session has waited for so long. Call dissolve to
// end it.
func (e *Estate) LockQueue(table, waited string) (dissolve func()) {
	e.T.Helper()
	ctx := context.Background()
	first, second := e.Connect("main"), e.Connect("main")
	if _, err := first.Exec(ctx, `BEGIN; LOCK TABLE `+table+` IN ACCESS SHARE MODE`); err != nil {
		e.T.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := second.Exec(ctx, `BEGIN; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE; COMMIT`)
		done <- err
	}()
	e.Eventually("main", `SELECT coalesce(max(clock_timestamp() - waitstart) > interval '`+waited+`', false) FROM pg_locks
		WHERE NOT granted AND relation = '`+table+`'::regclass`, "true")
	dissolved := false
	dissolve = func() {
		if dissolved {
			return
		}
		dissolved = true
		if _, err := first.Exec(ctx, `COMMIT`); err != nil {
			e.T.Error(err)
		}
		if err := <-done; err != nil {
			e.T.Error(err)
		}
	}
	e.T.Cleanup(dissolve)
	return dissolve
}

// LoadLimits are limits of the load, and few records a batch, so that a run looks often.
func LoadLimits(l load.Config) func(*service.Config) {
	return func(c *service.Config) {
		c.Load = l
		service.Settings[lfk.Config](c).BatchSize = 2
		// Other waits of a test than for the load must not end its run.
		if service.Settings[lfk.Config](c).MaxRuntime == 0 {
			service.Settings[lfk.Config](c).MaxRuntime = 2 * devdb.WaitTimeout
		}
	}
}

// WaitThrottled waits until the worker's status reports that it is slowed down, with these words.
func WaitThrottled(t *testing.T, s *service.Service, words string) {
	t.Helper()
	devdb.Eventually(t, "the load to be over a limit: "+words, func() bool {
		st := Status(t, s)
		over := st.Condition == status.ConditionThrottled
		if st.Condition == status.ConditionRunning {
			over = strings.Contains(st.ConditionDetail, "slowed down")
		}
		return over && strings.Contains(st.ConditionDetail, words)
	})
}
