package lfk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestFault_LooseForeignKeysCleanup_KilledBetweenChildrenAndRemovalIsTakenOver(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 10 FROM generate_series(1, 100) i`)
	e.Deleted("main", "p", 1, 5)
	e.Gate("main", "loose_foreign_keys_deleted_records")
	e.Shut("main", "doomed")
	p := e.Start("doomed", servicetest.OneChild, servicetest.ShortRun)
	e.AtGate("main", "doomed")
	e.Want("ci", `SELECT count(*) FROM c`, "50")
	// The commits of its batches are on record soon.
	e.Eventually("main", `SELECT counts ->> 'deleted_rows' FROM maintenance.runs`, "50")
	p.Kill()
	// The server gives up the removal that no client waits for.
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	e.WantQueue("main", "1 2 3 4 5")
	e.WantLease("main", 1, true)

	s := e.Service(servicetest.OneChild)
	r := e.AfterExpiry(s, "doomed")
	servicetest.WantRun(t, r, control.RunSucceeded, "processed_records=5")
	assert.That(t, r.LeaseEpoch == 2, "epoch %d, want 2", r.LeaseEpoch)
	e.Want("ci", `SELECT count(*) FROM c`, "50")
	e.WantQueue("main", "")
	e.WantLease("main", 2, false)
	e.WantLease("ci", 2, false)

	// Its run is closed at the first call after its time.
	id := e.Value("main", `SELECT id FROM maintenance.runs WHERE replica = 'doomed'`)
	dead := servicetest.Ended(t, s, id)
	servicetest.WantLost(t, dead)
	servicetest.WantCounts(t, dead, "deleted_rows=50")
	assert.That(t, !dead.FinishedAt.IsZero() && strings.Contains(dead.Error, "at least what its counts say"),
		"%+v, want an end and an error", dead)
}

func TestFault_LooseForeignKeysCleanup_WokenBeyondItsLeaseWritesNothingAndFreesNoLease(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.Exec("ci", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 20)`)
	e.Deleted("main", "p", 1, 20)
	e.Gate("main", "c")
	e.Shut("main", "sleeper")
	e.Shut("main", "successor")
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n" + servicetest.OneChild
	sleeper := e.Start("sleeper", definitions, servicetest.ShortRun)
	e.AtGate("main", "sleeper")
	sleeper.Signal(syscall.SIGSTOP)
	e.Want("ci", `SELECT count(*) FROM d`, "0")
	for _, database := range []string{"main", "ci"} {
		e.Eventually(database, `SELECT expires_at <= clock_timestamp() FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "true")
	}

	successor := e.Start("successor", definitions, func(o *servicetest.Order) { o.BatchSize = 10 })
	e.AtGate("main", "successor")
	e.WantLease("main", 2, true)
	e.WantLease("ci", 2, true)
	before := e.State("main", "c")
	e.Lift("main", "sleeper")
	sleeper.Signal(syscall.SIGCONT)
	result := sleeper.Result()
	assert.Require(t, result.Error == "", "%v", result.Error)
	servicetest.WantLost(t, result.Run)
	servicetest.WantCounts(t, result.Run, "deleted_rows=20")
	e.WantSame("main", before, "c")
	e.WantLease("main", 2, true)
	e.WantLease("ci", 2, true)
	e.Want("main", `SELECT holder FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "successor")

	e.Lift("main", "successor")
	result = successor.Result()
	assert.Require(t, result.Error == "", "%v", result.Error)
	servicetest.WantRun(t, result.Run, control.RunSucceeded, "processed_records=20 deleted_rows=20")
	e.Want("main", `SELECT count(*) FROM c`, "0")
	e.WantLease("main", 2, false)
}

const sharded = `
c:
  - {table: p, column: p_id, on_delete: async_delete}
  - {table: q, column: q_id, on_delete: async_delete}
invoices:
  - {table: p, column: p_id, on_delete: async_nullify}
orders:
  - {table: p, column: p_id, on_delete: async_delete}
`

// sharding is main and so many shards, in the order of the rotation.
func sharding(shards int) []string {
	names := []string{"main"}
	for i := range shards {
		names = append(names, fmt.Sprintf("shard_%02d", i+1))
	}
	return names
}

// fillShards makes a table in main, one in a single shard and one in every shard. All have rows of
// the parents 1 to 40. The parents are deleted.
func fillShards(e *servicetest.Estate, names ...string) {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE c (p_id bigint, q_id bigint); CREATE INDEX ON c (p_id); CREATE INDEX ON c (q_id);
		INSERT INTO c SELECT i, i FROM generate_series(1, 40) i`)
	for _, shard := range names[1:] {
		e.Exec(shard, `CREATE TABLE orders (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON orders (p_id);
			INSERT INTO orders (p_id) SELECT i FROM generate_series(1, 50) i`)
	}
	e.Exec(names[2], `CREATE TABLE invoices (p_id bigint); CREATE INDEX ON invoices (p_id);
		INSERT INTO invoices SELECT i FROM generate_series(1, 40) i`)
	e.Deleted("main", "p", 1, 40)
}

func TestShards(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, sharding(5)...)
	t.Run("many databases are cleaned by one run", func(t *testing.T) {
		e.InTurn(t)
		manyShards(t, e)
	})
	t.Run("records of a database that is away stay, and the others are cleaned", func(t *testing.T) {
		e.InTurn(t)
		shardAway(t, e)
	})
}

func manyShards(t *testing.T, e *servicetest.Estate) {
	t.Helper()
	fillShards(e, sharding(5)...)
	s := e.Service(sharded)
	wantRun(t, s, fmt.Sprintf("processed_records=40 deleted_rows=%d updated_rows=40", 40+5*40))
	e.Want(sharding(5)[2], `SELECT count(p_id) FROM invoices`, "0")
	for _, shard := range sharding(5)[1:] {
		e.Want(shard, `SELECT count(*) || ' ' || min(p_id) FROM orders`, "10 41")
		e.Want(shard, `SELECT string_agg(name || ' ' || (expires_at > now()), '') FROM maintenance.leases`,
			servicetest.MainLease+" false")
		// One connection is the test's. Two batches may be in flight, one renewal beside them.
		e.Want(shard, `SELECT count(*) <= 4 FROM pg_stat_activity WHERE datname = current_database()`, "true")
	}
}

func shardAway(t *testing.T, e *servicetest.Estate) {
	t.Helper()
	fillShards(e, sharding(5)...)
	e.Deleted("main", "q", 1, 40)
	const away = "shard_04"
	e.Deleted(away, "p", 1000, 1000)
	servicetest.WantCounts(t, servicetest.RunBatch(t, e.Service(sharded), away), "processed_records=1")
	e.Open[4].Close()
	// Another server has just started: it knows what the database had.
	r := servicetest.RunBatch(t, e.Service(sharded), "main")
	servicetest.WantFailed(t, r, "orders.p_id -> p on "+away+": unreachable, 40 records")
	assert.That(t, !strings.Contains(r.Error, "c.q_id") && !strings.Contains(r.Error, "invoices"),
		"%s: want no word on tables that are elsewhere", r.Error)
	servicetest.WantCounts(t, r, "processed_records=40 rescheduled_records=40 deleted_rows=200 updated_rows=40")
	e.Want("main", `SELECT count(*) || ' ' || min(fully_qualified_table_name) FROM loose_foreign_keys_deleted_records`, "40 public.p")
	e.Want(away, `SELECT count(*) FROM orders`, "50")
	e.Want("main", `SELECT sum(failures) FROM maintenance.record_failures`, "0")

	// It comes back.
	e.Open = append(e.Open[:4:4], e.Open[5])
	e.Add(away, e.URLs[away])
	dueAgain(e, "main")
	wantRun(t, e.Service(sharded), "processed_records=40 deleted_rows=40")
}

func TestShards_ADatabaseThatWasNeverSeenMayHaveEveryChild(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "shop")
	for _, name := range []string{"main", "shop"} {
		e.Exec(name, `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 50)`)
	}
	e.Deleted("main", "p", 1, 50)
	e.Open[1].Close()
	wantFailedRun(t, e.Service(servicetest.OneChild), "c.p_id -> p on shop: unreachable, 50 records", "rescheduled_records=50 deleted_rows=50")
	e.Add("shop", e.URLs["shop"])
	e.Open = []*repo.Database{e.Open[0], e.Open[2]}
	dueAgain(e, "main")
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=50 deleted_rows=50")
	// A child for which this database was not asked may exist, too.
	e.Open[1].Close()
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	e.Deleted("main", "p", 51, 51)
	wantFailedRun(t, e.Service("d:\n  - {table: p, column: p_id, on_delete: async_delete}\n"),
		"d.p_id -> p on shop: unreachable, 1 record", "rescheduled_records=1")
}

func TestShards_WhatADatabaseHasIsSavedWhenItChangesAndOnceAnHour(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 1)
	s := e.Service(servicetest.OneChild)
	written := func() string {
		wantRun(t, s, "processed_records=1 deleted_rows=3")
		e.Exec("main", `INSERT INTO c (p_id) VALUES (1), (1), (1)`)
		e.Deleted("main", "p", 1, 1)
		return e.Value("main", `SELECT xmin || ' ' || children::text || asked::text FROM maintenance.seen_children`)
	}
	first := written()
	assert.Contains(t, first, "{c}{c}")
	assert.Equal(t, written(), first, "unchanged")
	e.Exec("main", `UPDATE maintenance.seen_children SET children = '{}'`)
	assert.Contains(t, written(), "{c}{c}")
	e.Exec("main", `UPDATE maintenance.seen_children SET seen_at = now() - interval '61 minutes'`)
	written()
	e.Want("main", `SELECT seen_at > now() - interval '60 minutes' FROM maintenance.seen_children`, "true")
}

func TestShards_AServerThatDoesNotKnowTheNewDatabaseYetHoldsTheRecords(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "shop", "shop_eu")
	e.Exec("shop_eu", `CREATE TABLE orders (p_id bigint); CREATE INDEX ON orders (p_id); INSERT INTO orders VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	const orders = "orders:\n  - {table: p, column: p_id, on_delete: async_delete}\n"
	old := e.Service(orders, func(c *service.Config) { c.Databases = e.Open[:2] })
	fresh := e.Service(orders)

	r := servicetest.RunBatch(t, old, "main")
	assert.Contains(t, r.Reason, "1 record held, because no configured database has the child tables orders")
	e.WantQueue("main", "1")
	_, err := old.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "shop_eu"})
	assert.That(t, errors.Is(err, fault.ErrUnknownDatabase), "got %v", err)
	dueAgain(e, "main")
	wantRun(t, fresh, "processed_records=1 deleted_rows=1")

	// That it was accepted as absent before holds until a server that knows the database has had a run.
	e.Exec("main", `INSERT INTO maintenance.absent_children (child, accepted_by) VALUES ('orders', 'me')`)
	servicetest.RunBatch(t, e.Service(orders), "main")
	e.Deleted("main", "p", 2, 2)
	r = servicetest.RunBatch(t, old, "main")
	assert.Contains(t, r.Reason, "1 record held")
	e.WantQueue("main", "2")
}
