package repo_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantChain fails the test unless the receipts are a chain without gaps up to the head, of so many.
func (b *bench) wantChain(n int64) {
	b.Helper()
	head, err := b.ReceiptHead(context.Background())
	assert.Require(b.T, err == nil && head.Sequence == n && head.Newest == n, "head %+v, %v, want %d", head, err, n)
	after, hash := int64(0), ""
	for after < n {
		page, err := b.CheckReceipts(context.Background(), after+1, hash)
		assert.Require(b.T, err == nil && len(page) != 0, "%d receipts behind %d, %v", len(page), after, err)
		for _, r := range page {
			assert.Require(b.T, r.Sequence == after+1 && r.Intact && r.KeysIntact, "behind %d: %+v", after, r)
			after, hash = r.Sequence, r.Hash
		}
	}
	assert.That(b.T, hash == head.Hash, "the last hash is %s, the head's %s", hash, head.Hash)
}

// lastReceipt is the newest one without what differs from one run of the test to the next.
func (b *bench) lastReceipt() string {
	b.Helper()
	return b.value(`SELECT concat_ws(' ', worker, "table", action, rule, rows, lowest_key, highest_key, keys::text, encode(keys_digest, 'hex') = encode(sha256('{1,2,10}'), 'hex'), requested_by)
		FROM maintenance.receipts ORDER BY sequence DESC LIMIT 1`)
}

// listed are the numbers of the receipts of a filter, two a page.
func (b *bench) listed(f repo.ReceiptFilter) (found string) {
	b.Helper()
	f.Limit = 2
	for {
		page, before, err := b.ListReceipts(context.Background(), f)
		assert.NoError(b.T, err)
		for _, r := range page {
			found += fmt.Sprint(r.Sequence, " ")
		}
		if f.Before = before; before == 0 {
			return found
		}
	}
}

func TestReceipts_SayWhatASweepHasDone(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t VALUES (1, 1), (2, 1), (10, 1), (3, 2), (4, 3), (5, 4);
		CREATE TABLE u (a text, b bigint, owner bigint, PRIMARY KEY (a, b)); INSERT INTO u VALUES ('x"', 1, 1), ('y', 2, 1);
		CREATE TABLE v (owner bigint, n int); INSERT INTO v VALUES (1, 1), (1, 2)`)
	b.KeepKeys = true
	source := repo.Source{RunID: "0190a1b2-0000-7000-8000-000000000001", Worker: "w", RequestedBy: "me"}
	permit := locking(1)
	permit.Source = source
	sweep := func(table, owner string, c repo.Change, batch repo.Batch) repo.BatchResult {
		t.Helper()
		batch.Permit = permit
		rows, _ := b.catalog(map[string][]string{table: {"id", "owner"}}).Rows(table, "owner", owner)
		r := assert.Must(rows.Sweep(context.Background(), c, batch))(t)
		return r
	}
	wantLast := func(want string) {
		t.Helper()
		if got := b.lastReceipt(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	sweep("t", "1", repo.Change{Set: []string{"owner"}, Value: new(int64(7))}, repo.Batch{Rows: 9})
	wantLast("w t updated t.owner 3 1 10 {1,2,10} t me")
	sweep("t", "7", repo.Change{Delete: true}, repo.Batch{Rows: 9, Direct: true})
	wantLast("w t deleted t.owner 3 1 10 {1,2,10} t me")
	sweep("t", "2", repo.Change{Set: []string{"owner"}}, repo.Batch{Rows: 9, SkipLocked: true})
	wantLast("w t nullified t.owner 1 3 3 {3} f me")
	sweep("u", "1", repo.Change{Delete: true}, repo.Batch{Rows: 9})
	wantLast(`w u deleted u.owner 2 ("x""",1) (y,2) {"(\"x\"\"\",1)","(y,2)"} f me`)
	sweep("v", "1", repo.Change{Delete: true}, repo.Batch{Rows: 9})
	wantLast(`w v deleted v.owner 2 (1) (1) {(1),(1)} f me`)
	if r := sweep("t", "99", repo.Change{Delete: true}, repo.Batch{Rows: 9}); r.Changed != 0 {
		t.Errorf("%+v", r)
	}
	b.KeepKeys = false
	sweep("t", "3", repo.Change{Delete: true}, repo.Batch{Rows: 9})
	wantLast("w t deleted t.owner 1 4 4 f me")
	b.wantChain(6)

	for _, c := range []struct {
		filter repo.ReceiptFilter
		want   string
	}{
		{repo.ReceiptFilter{}, "6 5 4 3 2 1 "},
		{repo.ReceiptFilter{Table: "t"}, "6 3 2 1 "},
		{repo.ReceiptFilter{Table: "t", Key: "2"}, "2 1 "},
		{repo.ReceiptFilter{Table: "t", Key: "4"}, "6 "},
		{repo.ReceiptFilter{Table: "t", Key: "9"}, ""},
		{repo.ReceiptFilter{Table: "u", Key: "(y,2)"}, "4 "},
		{repo.ReceiptFilter{Table: "t", Key: "nothing"}, ""},
		{repo.ReceiptFilter{RunID: source.RunID}, "6 5 4 3 2 1 "},
		{repo.ReceiptFilter{JobID: 7}, ""},
	} {
		if got := b.listed(c.filter); got != c.want {
			t.Errorf("%+v: %s, want %s", c.filter, got, c.want)
		}
	}
}

func TestReceipts_NothingIsWrittenForNothing(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, 9);
		CREATE TABLE child (id bigserial PRIMARY KEY, t_id bigint REFERENCES t DEFERRABLE INITIALLY DEFERRED); INSERT INTO child (t_id) VALUES (1)`)
	rows := b.rows("t", "owner", "1")
	_, err := rows.Sweep(context.Background(), repo.Change{Delete: true}, repo.Batch{Rows: 9, Permit: locking(1)})
	servicetest.WantError(t, err, "child_t_id_fkey")
	b.wantChain(0)

	lease, err := b.AcquireLease(context.Background(), "a", "me", time.Minute)
	assert.NoError(t, err)
	b.exec(`UPDATE maintenance.leases SET epoch = epoch + 1`)
	for _, direct := range []bool{true, false} {
		_, err = rows.Sweep(context.Background(), repo.Change{Delete: true},
			repo.Batch{Rows: 9, Direct: direct, Permit: by(lease.Fence)})
		servicetest.WantError(t, err, repo.ErrLeaseLost.Error())
	}
	b.want(`SELECT count(*) FROM t`, "9")
	b.wantChain(0)

	b.exec(`DELETE FROM maintenance.receipt_head; DROP TABLE child`)
	_, err = rows.Sweep(context.Background(), repo.Change{Delete: true}, repo.Batch{Rows: 9, Permit: locking(1)})
	servicetest.WantError(t, err, "receipts")
	b.want(`SELECT count(*) FROM t`, "9")
}

// Statements, and transactions of several that change rows in the opposite order, write side by side.
func TestReceipts_StayAChainWhoeverWrites(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	const groups, rows = 40, 400
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT i % 4 FROM generate_series(1, 400) i`)
	b.exec(`INSERT INTO organizations (id, name, path, created_at, updated_at) VALUES (1, 'o', 'o', now(), now());
		INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, i, i, 'Group', 1 FROM generate_series(1, 40) i;
		INSERT INTO routes (source_id, source_type, path, name, namespace_id) SELECT i, 'Namespace', i, i, i FROM generate_series(1, 40) i`)
	stores := assert.Must(b.GroupStores(context.Background()))(t)
	failed := make(chan error, 100)
	var wait sync.WaitGroup
	for owner := range 4 {
		swept := b.rows("t", "owner", fmt.Sprint(owner))
		wait.Go(func() {
			for range rows / 4 / 5 {
				_, err := swept.Sweep(context.Background(), repo.Change{Delete: true}, repo.Batch{Rows: 5, Permit: locking(int64(owner))})
				failed <- err
			}
		})
		wait.Go(func() {
			for i := range groups / 4 {
				_, err := b.RemoveGroup(context.Background(), locking(int64(100+owner)), stores, int64(owner*10+i+1), repo.Removed{})
				failed <- err
			}
		})
	}
	go func() { wait.Wait(); close(failed) }()
	for err := range failed {
		assert.That(t, err == nil, "%v", err)
	}
	b.want(`SELECT count(*) FROM t`, "0")
	b.want(`SELECT string_agg(concat_ws(' ', "table", n), ', ' ORDER BY "table") FROM (SELECT "table", sum(rows) AS n FROM maintenance.receipts GROUP BY 1) x`,
		"namespace_details 40, namespaces 40, routes 40, t 400")
	b.wantChain(rows/5 + 3*groups)
}

// A transaction that has written its receipts waits for nobody, whatever it has yet to check.
func TestReceipts_TheHeadIsLockedLast(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent VALUES (1), (2);
		CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint REFERENCES parent); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) VALUES (1);
		CREATE TABLE other (id bigserial PRIMARY KEY, owner bigint); INSERT INTO other (owner) VALUES (1)`)
	commit := b.estate.HoldThenCommit(`SELECT FROM parent WHERE id = 2 FOR UPDATE`)
	moved := make(chan error, 1)
	move := b.rows("t", "owner", "1")
	go func() {
		change := repo.Change{Set: []string{"owner"}, Value: new(int64(2))}
		moved <- second(move.Sweep(context.Background(), change, repo.Batch{Rows: 9, Permit: locking(1)}))
	}()
	b.estate.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
		"true")
	// The check of the foreign key waits. Others write their receipts meanwhile.
	b.swept(b.rows("other", "owner", "1"), repo.Change{Delete: true}, repo.Batch{Rows: 9, Permit: locking(2)})
	commit()
	assert.NoError(t, <-moved)
	b.wantChain(2)
}

func TestReceipts_PruningKeepsTheChain(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, 5)`)
	for range 5 {
		if r := b.swept(b.rows("t", "owner", "1"), repo.Change{Delete: true}, repo.Batch{Rows: 1}); r.Changed != 1 {
			t.Fatal(r)
		}
	}
	prune := func(keep time.Duration) {
		t.Helper()
		if more, err := b.PruneReceipts(context.Background(), keep); more || err != nil {
			t.Errorf("%v, %v", more, err)
		}
	}
	prune(time.Hour)
	b.wantChain(5)
	// What is kept ends the pruning, even with older ones behind it.
	b.exec(`UPDATE maintenance.receipts SET at = at - interval '2 hours' WHERE sequence IN (1, 2, 4)`)
	prune(time.Hour)
	head, err := b.ReceiptHead(context.Background())
	assert.Require(t, err == nil && head.Sequence == 5 && head.PrunedSequence == 2 && head.PrunedHash != "", "%+v, %v", head, err)
	page, err := b.CheckReceipts(context.Background(), head.PrunedSequence+1, head.PrunedHash)
	assert.That(t, err == nil && len(page) == 3 && page[0].Intact && !page[1].Intact && page[2].Intact, "%+v, %v", page, err)
	prune(0)
	if head, err = b.ReceiptHead(context.Background()); err != nil || head.PrunedSequence != 5 || head.PrunedHash != head.Hash || head.Newest != 5 {
		t.Errorf("%+v, %v", head, err)
	}
}
