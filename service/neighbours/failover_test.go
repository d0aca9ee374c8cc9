package neighbours_test

import (
	"context"
	"errors"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The URL names both hosts. The primary dies under a run, and the standby, which has all that was committed, is promoted.
func TestNeighbour_AServerWithTwoHostsInItsURLFollowsAFailOver(t *testing.T) {
	t.Parallel()
	e, own := newServer(t, nil, `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 40);`+plainChild+childrenOfAll)
	standby := assert.Must(own.Cluster.Standby(t.Context(), nil))(t)
	t.Cleanup(func() { assert.NoError(t, standby.Stop(context.Background())) })
	e.Exec("main", `ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
	e.Exec("main", `SELECT pg_reload_conf()`)
	e.Eventually("main", `SELECT sync_state FROM pg_stat_replication`, "sync")

	both := address(t, e.URLs["main"])
	both.Host += "," + address(t, standby.URL("estate")).Host
	both.RawQuery += "&target_session_attrs=read-write"
	d := assert.Must(repo.Open(t.Context(), "main", both.String()))(t)
	t.Cleanup(d.Close)
	e.Open = []*repo.Database{d}
	e.Exec("main", `DELETE FROM p WHERE id <= 20`)
	e.Gate("main", "c", "OLD.p_id > 10")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0))
	begun := servicetest.Begin(t, s, "main")
	e.Eventually("main", `SELECT count(*) FROM c`, "60")
	e.AtGate("main", servicetest.App)
	own.Kill()

	e.URLs["main"] = standby.URL("estate")
	e.SQL["main"] = e.Connect("main")
	e.Exec("main", `SELECT pg_promote()`) // what pg_ctl promote does
	e.Lift("main", servicetest.App)
	e.Exec("main", `DELETE FROM p WHERE id <= 25`)
	devdb.Eventually(t, "the next run", func() bool {
		_, err := s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys})
		var held *service.LeaseHeldError
		assert.Require(t, err == nil || errors.Is(err, service.ErrUnreachable) || errors.As(err, &held), "%v", err)
		return err == nil
	})
	servicetest.WantState(t, servicetest.Ended(t, s, begun.ID), repo.RunFailed)
	wantEmptied(e)
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "30 26")
	e.Want("main", `SELECT sum((counts ->> 'processed_records')::int) || ' ' || sum((counts ->> 'deleted_rows')::int) FROM maintenance.runs`, "25 50")
}
