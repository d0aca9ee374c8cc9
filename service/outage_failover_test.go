package service_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// The address of main is that of a proxy, as a virtual one or a name would be. It leads to the primary, by mistake to its
// standby, to the primary again, and after the primary's death to the standby, which then is promoted.
func TestOutage_FailOverToAStandby(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := newEstate(t, "main")
	own := newServer(t, "main")
	e.add("main", own.cluster.URL("main"))
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 40) i`)
	e.deleted("main", "p", 1, 10)
	standby, err := own.cluster.Standby(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })

	address := newProxy(t)
	r := e.replica("one", address.url(t, e.urls["main"]), oneChild)
	wantRun := func(counts string) {
		t.Helper()
		done, err := r.RunBatch(ctx, service.RunRequest{Worker: cleanupWorker})
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, done, repo.RunSucceeded)
		wantCounts(t, done, counts)
	}
	wantRun("processed_records=10 deleted_rows=10")
	e.insert(placeholders(1)...)
	e.eventually("main", `SELECT state FROM maintenance.river_job`, "completed")

	// Connections that lead to a standby must not stay there.
	before := time.Now()
	address.url(t, standby.URL("main"))
	address.cut()
	r.wantUnreachable(t, before, "read-only")
	e.deleted("main", "p", 11, 20)
	e.insert(placeholders(2)...)
	back := time.Now()
	address.url(t, e.urls["main"])
	r.wantBack(t, back)
	wantRun("processed_records=10 deleted_rows=10")
	e.eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")

	e.deleted("main", "p", 21, 30)
	e.insert(placeholders(3)...)
	e.eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	e.eventually("main", `SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication`, "true")
	r.wantBack(t, time.Now())
	before = time.Now()
	own.kill()
	r.wantUnreachable(t, before, "database main: unreachable")
	address.url(t, standby.URL("main"))
	r.wantUnreachable(t, before, "read-only")
	promoted := time.Now()
	e.urls["main"] = standby.URL("main")
	e.sql["main"] = e.connect("main")
	e.exec("main", `SELECT pg_promote()`)
	r.wantBack(t, promoted)
	wantRun("processed_records=10 deleted_rows=10")
	e.want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "10 31")
	e.wantQueue("main", "")
	e.insert(placeholders(4)...)
	e.eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
}

// wantExplained waits until a replica says that main is unreachable, and why.
func (r *replica) wantExplained(t *testing.T, words string) {
	t.Helper()
	message := ""
	waitFor(t, "the status to say "+words, func() bool {
		all, err := r.Status(context.Background(), cleanupWorker)
		if err != nil {
			t.Fatal(err)
		}
		if f := all[0].Failing; f != nil && f.Class == service.FailureUnreachable {
			message = f.Message
		}
		return message == "database main: unreachable: "+words
	})
}

func TestOutage_NoConnectionIsLeftOnTheServer(t *testing.T) {
	t.Parallel()
	const connections = 20
	ctx := context.Background()
	e := newEstate(t, "main")
	own := newServer(t, "main", map[string]string{"max_connections": strconv.Itoa(connections), "superuser_reserved_connections": "0"})
	e.add("main", own.cluster.URL("main"))
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := e.replica("one", e.urls["main"], oneChild, cleanupWorker)
	r.wantBack(t, time.Now())
	// All but the test's own connection.
	var hogs []*pgx.Conn
	waitFor(t, "all connections to be taken", func() bool {
		e.exec("main", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caretaker'`) //nolint:contextcheck // exec has its own
		for {
			hog, err := pgx.Connect(ctx, e.urls["main"]+"&application_name=hog")
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
	e.wantIdle(r)
}

func TestOutage_PoolIsFull(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := newEstate(t, "main", "main")
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := e.replica("one", e.urls["main"], oneChild, cleanupWorker, ghostWorker)
	r.wantBack(t, time.Now())
	var taken []interface{ Release() }
	for range r.main.Pool().Config().MaxConns {
		conn, err := r.main.Pool().Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn)
	}
	r.wantExplained(t, "all connections of its pool are in use")
	e.insert(placeholders(1)...)
	released := time.Now()
	for _, conn := range taken {
		conn.Release()
	}
	r.wantBack(t, released)
	e.eventually("main", `SELECT state FROM maintenance.river_job`, "completed")
	e.wantIdle(r)
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
}
