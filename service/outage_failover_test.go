package service_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The address of main is that of a proxy, as a virtual one or a name would be. It leads to the primary, by mistake to its
// standby, to the primary again, and after the primary's death to the standby, which then is promoted.
func TestFault_Outage_FailOverToAStandby(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := servicetest.New(t, "main")
	own := servicetest.NewServer(t, "main")
	e.Add("main", own.Cluster.URL("main"))
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 40) i`)
	e.Deleted("main", "p", 1, 10)
	standby := servicetest.Must(own.Cluster.Standby(ctx, nil))(t)
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })

	address := newProxy(t)
	r := newReplica(e, "one", address.url(t, e.URLs["main"]), servicetest.OneChild)
	wantRun := func(counts string) {
		t.Helper()
		done := servicetest.Must(r.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys}))(t)
		servicetest.WantState(t, done, repo.RunSucceeded)
		servicetest.WantCounts(t, done, counts)
	}
	wantRun("processed_records=10 deleted_rows=10")
	e.Insert(servicetest.Placeholders(1)...)
	e.Eventually("main", `SELECT state FROM maintenance.river_job`, "completed")

	// Connections that lead to a standby must not stay there.
	before := time.Now()
	address.url(t, standby.URL("main"))
	address.cut()
	r.wantUnreachable(t, before, "read-only")
	e.Deleted("main", "p", 11, 20)
	e.Insert(servicetest.Placeholders(2)...)
	back := time.Now()
	address.url(t, e.URLs["main"])
	r.wantBack(t, back)
	wantRun("processed_records=10 deleted_rows=10")
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")

	e.Deleted("main", "p", 21, 30)
	e.Insert(servicetest.Placeholders(3)...)
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	e.Eventually("main", `SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication`, "true")
	r.wantBack(t, time.Now())
	before = time.Now()
	own.Kill()
	r.wantUnreachable(t, before, "database main: unreachable")
	address.url(t, standby.URL("main"))
	r.wantUnreachable(t, before, "read-only")
	promoted := time.Now()
	e.URLs["main"] = standby.URL("main")
	e.SQL["main"] = e.Connect("main")
	e.Exec("main", `SELECT pg_promote()`)
	r.wantBack(t, promoted)
	wantRun("processed_records=10 deleted_rows=10")
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "10 31")
	e.WantQueue("main", "")
	e.Insert(servicetest.Placeholders(4)...)
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
}

// wantExplained waits until a replica says that main is unreachable, and why.
func (r *replica) wantExplained(t *testing.T, words string) {
	t.Helper()
	message := ""
	devdb.Eventually(t, "the status to say "+words, func() bool {
		all := servicetest.Must(r.Status(context.Background(), servicetest.LooseForeignKeys))(t)
		if f := all[0].Failing; f != nil && f.Class == service.FailureUnreachable {
			message = f.Message
		}
		return message == "database main: unreachable: "+words
	})
}

func TestFault_Outage_NoConnectionIsLeftOnTheServer(t *testing.T) {
	t.Parallel()
	const connections = 20
	ctx := context.Background()
	e := servicetest.New(t, "main")
	own := servicetest.NewServer(t, "main", map[string]string{"max_connections": strconv.Itoa(connections), "superuser_reserved_connections": "0"})
	e.Add("main", own.Cluster.URL("main"))
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := newReplica(e, "one", e.URLs["main"], servicetest.OneChild, servicetest.LooseForeignKeys)
	r.wantBack(t, time.Now())
	// All but the test's own connection.
	var hogs []*pgx.Conn
	devdb.Eventually(t, "all connections to be taken", func() bool {
		e.Exec("main", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caretaker'`) //nolint:contextcheck // exec has its own
		for {
			hog, err := pgx.Connect(ctx, e.URLs["main"]+"&application_name=hog")
			if err != nil {
				return len(hogs) == connections-1
			}
			hogs = append(hogs, hog)
		}
	})
	r.wantExplained(t, "it has no connection left: max_connections")
	released := time.Now()
	for _, hog := range hogs {
		_ = hog.Close(ctx)
	}
	r.wantBack(t, released)
	wantIdle(e, r)
}

func TestOutage_PoolIsFull(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := newReplica(e, "one", e.URLs["main"], servicetest.OneChild, servicetest.LooseForeignKeys)
	r.wantBack(t, time.Now())
	var taken []interface{ Release() }
	for range r.main.Pool().Config().MaxConns {
		conn := servicetest.Must(r.main.Pool().Acquire(ctx))(t)
		taken = append(taken, conn)
	}
	r.wantExplained(t, "all connections of its pool are in use")
	e.Insert(servicetest.Placeholders(1)...)
	released := time.Now()
	for _, conn := range taken {
		conn.Release()
	}
	r.wantBack(t, released)
	e.Eventually("main", `SELECT state FROM maintenance.river_job`, "completed")
	wantIdle(e, r)
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
}
