package repo_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantChain fails the test unless the receipts are a chain without gaps up to the head, of so many.
func (b *bench) wantChain(n int64) {
	b.Helper()
	head, err := b.Receipts.ReceiptHead(context.Background())
	assert.Require(b.T, err == nil && head.Sequence == n && head.Newest == n, "head %+v, %v, want %d", head, err, n)
	after, hash := int64(0), ""
	for after < n {
		page, err := b.Receipts.CheckReceipts(context.Background(), after+1, hash)
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
func (b *bench) listed(f control.ReceiptFilter) (found string) {
	b.Helper()
	f.Limit = 2
	for {
		page, before, err := b.Receipts.ListReceipts(context.Background(), f)
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
	source := fencing.Source{RunID: "0190a1b2-0000-7000-8000-000000000001", Worker: "w", RequestedBy: "me"}
	permit := unguarded()
	permit.Source = source
	sweep := func(table, owner string, c rowset.Change, batch rowset.Batch) rowset.BatchResult {
		t.Helper()
		batch.Permit = permit
		rows, _ := rowset.RowsOf(b.catalog(map[string][]string{table: {"id", "owner"}}), table, "owner", owner)
		r := assert.Must(rows.Sweep(context.Background(), c, batch))(t)
		return r
	}
	wantLast := func(want string) {
		t.Helper()
		assert.Equal(t, b.lastReceipt(), want)
	}
	sweep("t", "1", rowset.Change{Set: []string{"owner"}, Value: new(int64(7))}, rowset.Batch{Rows: 9})
	wantLast("w t updated t.owner 3 1 10 {1,2,10} t me")
	sweep("t", "7", rowset.Change{Delete: true}, rowset.Batch{Rows: 9, Direct: true})
	wantLast("w t deleted t.owner 3 1 10 {1,2,10} t me")
	sweep("t", "2", rowset.Change{Set: []string{"owner"}}, rowset.Batch{Rows: 9, SkipLocked: true})
	wantLast("w t nullified t.owner 1 3 3 {3} f me")
	sweep("u", "1", rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
	wantLast(`w u deleted u.owner 2 ("x""",1) (y,2) {"(\"x\"\"\",1)","(y,2)"} f me`)
	sweep("v", "1", rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
	wantLast(`w v deleted v.owner 2 (1) (1) {(1),(1)} f me`)
	r := sweep("t", "99", rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
	assert.That(t, r.Changed == 0, "%+v", r)
	b.KeepKeys = false
	sweep("t", "3", rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
	wantLast("w t deleted t.owner 1 4 4 f me")
	b.wantChain(6)

	for _, c := range []struct {
		filter control.ReceiptFilter
		want   string
	}{
		{control.ReceiptFilter{}, "6 5 4 3 2 1 "},
		{control.ReceiptFilter{Table: "t"}, "6 3 2 1 "},
		{control.ReceiptFilter{Table: "t", Key: "2"}, "2 1 "},
		{control.ReceiptFilter{Table: "t", Key: "4"}, "6 "},
		{control.ReceiptFilter{Table: "t", Key: "9"}, ""},
		{control.ReceiptFilter{Table: "u", Key: "(y,2)"}, "4 "},
		{control.ReceiptFilter{Table: "t", Key: "nothing"}, ""},
		{control.ReceiptFilter{RunID: source.RunID}, "6 5 4 3 2 1 "},
		{control.ReceiptFilter{JobID: 7}, ""},
		{control.ReceiptFilter{Worker: "w", Table: "u"}, "4 "},
		{control.ReceiptFilter{Worker: "nobody"}, ""},
		{control.ReceiptFilter{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, "6 5 4 3 2 1 "},
		{control.ReceiptFilter{Since: time.Now().Add(time.Hour)}, ""},
		{control.ReceiptFilter{Until: time.Now().Add(-time.Hour)}, ""},
	} {
		assert.Equal(t, b.listed(c.filter), c.want, c.filter)
	}

	// A receipt may be up to a minute older than the one before it.
	b.exec(`UPDATE maintenance.receipts SET at = '2026-01-01Z'::timestamptz + CASE sequence
		WHEN 3 THEN interval '50 s' WHEN 4 THEN '10 s' WHEN 5 THEN '20 s' WHEN 6 THEN '1 h' ELSE '-2 h' END`)
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	assert.Equal(t, b.listed(control.ReceiptFilter{Since: from}), "6 5 4 3 ")
	assert.Equal(t, b.listed(control.ReceiptFilter{Since: from, Until: from.Add(30 * time.Second)}), "5 4 ")
}

// Keys of type text and of several columns are in the order of their bytes, even if they look like
// numbers.
func TestReceipts_AreFoundByKeysThatLookLikeNumbers(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, requested_by, hash)
		VALUES (100, now(), $1::text::uuid, 'w', 'texts', 'deleted', '', 3, '10', '9', '', '', ''),
			(101, now(), $1::text::uuid, 'w', 'pairs', 'deleted', '', 3, '(10,2)', '(9,1)', '', '', '')`, "0190a1b2-0000-7000-8000-000000000001")
	for key, want := range map[string]string{"9": "100 ", "10": "100 ", "500": "100 ", "95": "", "1": "", "x": "", "-3": ""} {
		assert.Equal(t, b.listed(control.ReceiptFilter{Table: "texts", Key: key}), want, key)
	}
	for key, want := range map[string]string{"(9,1)": "101 ", "(10,2)": "101 ", "(500,1)": "101 ", "500": ""} {
		assert.Equal(t, b.listed(control.ReceiptFilter{Table: "pairs", Key: key}), want, key)
	}
}

// The digest without kept keys is that of the documentation, in whatever order rows are deleted.
func TestReceipts_TheDigestNeedsNoSort(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id serial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t VALUES (10, 1), (1, 1), (2, 1);
		CREATE TABLE u (a text, b bigint, owner bigint, PRIMARY KEY (a, b)); INSERT INTO u VALUES ('y', 2, 1), ('x"', 1, 1)`)
	for table, want := range map[string]string{
		"t": `'3 1 10 ' || encode(sha256(sum(hashint8extended(k, 0))::text::bytea), 'hex') FROM unnest(ARRAY[1, 2, 10]) k`,
		"u": `'2 ("x""",1) (y,2) ' || encode(sha256(sum(hashtextextended(k, 0))::text::bytea), 'hex')
			FROM unnest(ARRAY['("x""",1)', '(y,2)']) k`,
	} {
		rows, _ := rowset.RowsOf(b.catalog(map[string][]string{table: {"id", "owner"}}), table, "owner", "1")
		b.swept(rows, rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
		b.want(`SELECT concat_ws(' ', rows, lowest_key, highest_key, encode(keys_digest, 'hex'), keys)
			FROM maintenance.receipts ORDER BY sequence DESC LIMIT 1`, b.value(`SELECT `+want))
	}
	b.wantChain(2)
}

func TestReceipts_NothingIsWrittenForNothing(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, 9);
		CREATE TABLE child (id bigserial PRIMARY KEY, t_id bigint REFERENCES t DEFERRABLE INITIALLY DEFERRED); INSERT INTO child (t_id) VALUES (1)`)
	rows := b.rows("t", "owner", "1")
	_, err := rows.Sweep(context.Background(), rowset.Change{Delete: true}, rowset.Batch{Rows: 9, Permit: unguarded()})
	servicetest.WantError(t, err, "child_t_id_fkey")
	b.wantChain(0)

	lease, err := b.Leases.AcquireLease(context.Background(), "a", "me", time.Minute)
	assert.NoError(t, err)
	b.exec(`UPDATE maintenance.leases SET epoch = epoch + 1`)
	for _, direct := range []bool{true, false} {
		_, err = rows.Sweep(context.Background(), rowset.Change{Delete: true},
			rowset.Batch{Rows: 9, Direct: direct, Permit: by(lease.Fence)})
		servicetest.WantError(t, err, dberr.ErrLeaseLost.Error())
	}
	b.want(`SELECT count(*) FROM t`, "9")
	b.wantChain(0)

	b.exec(`DELETE FROM maintenance.receipt_head; DROP TABLE child`)
	_, err = rows.Sweep(context.Background(), rowset.Change{Delete: true}, rowset.Batch{Rows: 9, Permit: unguarded()})
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
	stores := assert.Must(b.Groups.GroupStores(context.Background()))(t)
	failed := make(chan error, 100)
	var wait sync.WaitGroup
	for owner := range 4 {
		swept := b.rows("t", "owner", fmt.Sprint(owner))
		wait.Go(func() {
			for range rows / 4 / 5 {
				_, err := swept.Sweep(context.Background(), rowset.Change{Delete: true}, rowset.Batch{Rows: 5, Permit: unguarded()})
				failed <- err
			}
		})
		wait.Go(func() {
			for i := range groups / 4 {
				_, err := b.Groups.RemoveGroup(context.Background(), unguarded(), stores, int64(owner*10+i+1), gitlab.Removed{})
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

// A transaction that has written its receipts waits for no other, whatever it has yet to check.
func TestReceipts_TheHeadIsLockedLast(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent VALUES (1), (2);
		CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint REFERENCES parent); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) VALUES (1);
		CREATE TABLE other (id bigserial PRIMARY KEY, owner bigint); INSERT INTO other (owner) VALUES (1)`)
	commit := b.estate.HoldThenCommit(`SELECT FROM parent WHERE id = 2 FOR UPDATE`)
	moved := make(chan error, 1)
	move := b.rows("t", "owner", "1")
	go func() {
		change := rowset.Change{Set: []string{"owner"}, Value: new(int64(2))}
		moved <- second(move.Sweep(context.Background(), change, rowset.Batch{Rows: 9, Permit: unguarded()}))
	}()
	b.estate.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
		"true")
	// The check of the foreign key waits. Others write their receipts meanwhile.
	b.swept(b.rows("other", "owner", "1"), rowset.Change{Delete: true}, rowset.Batch{Rows: 9, Permit: unguarded()})
	commit()
	assert.NoError(t, <-moved)
	b.wantChain(2)
}

func TestReceipts_PruningKeepsTheChain(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, 5)`)
	for range 5 {
		if r := b.swept(b.rows("t", "owner", "1"), rowset.Change{Delete: true}, rowset.Batch{Rows: 1}); r.Changed != 1 {
			t.Fatal(r)
		}
	}
	prune := func(keep time.Duration) {
		t.Helper()
		if more, err := b.Receipts.PruneReceipts(context.Background(), keep); more || err != nil {
			t.Errorf("%v, %v", more, err)
		}
	}
	prune(time.Hour)
	b.wantChain(5)
	// A kept receipt ends the pruning, even if older ones follow.
	b.exec(`UPDATE maintenance.receipts SET at = at - interval '2 hours' WHERE sequence IN (1, 2, 4)`)
	prune(time.Hour)
	head, err := b.Receipts.ReceiptHead(context.Background())
	assert.Require(t, err == nil && head.Sequence == 5 && head.PrunedSequence == 2 && head.PrunedHash != "", "%+v, %v", head, err)
	page, err := b.Receipts.CheckReceipts(context.Background(), head.PrunedSequence+1, head.PrunedHash)
	assert.That(t, err == nil && len(page) == 3 && page[0].Intact && !page[1].Intact && page[2].Intact, "%+v, %v", page, err)
	prune(0)
	if head, err = b.Receipts.ReceiptHead(context.Background()); err != nil || head.PrunedSequence != 5 || head.PrunedHash != head.Hash || head.Newest != 5 {
		t.Errorf("%+v, %v", head, err)
	}
}

// leaving are rows whose column path is of something outside, deleted by a run or a job.
type leaving struct {
	*bench
	rowset.Rows
}

func newLeaving(t *testing.T) leaving {
	t.Helper()
	b := numbered(t, "4")
	b.exec(`UPDATE t SET path = NULL WHERE id = 3`)
	rows, _ := rowset.RowsOf(b.catalog(map[string][]string{"t": {"owner", "path"}}), "t", "owner", "1")
	return leaving{b, rows}
}

// delete deletes up to two rows.
func (l leaving) delete(l2 fencing.Limits, s fencing.Source) (rowset.BatchResult, error) {
	permit := fencing.Permit{Guard: repo.Unguarded(), Limits: l2, Source: s}
	change := rowset.Change{Delete: true, Report: "path", Outside: "project_repository"}
	return l.Sweep(context.Background(), change, rowset.Batch{Permit: permit, Rows: 2, Direct: true})
}

// wantNoted fails the test unless these paths are recorded, with the job or run.
func (l leaving) wantNoted(want string) {
	l.Helper()
	l.want(`SELECT string_agg(concat_ws(' ', path, kind, coalesce(job_id::text, right(run_id::text, 1)), done_at IS NULL), ', ' ORDER BY id)
		FROM maintenance.outside_paths`, want)
}

func TestOutside_PathsAreNotedWithTheRowsOrNotAtAll(t *testing.T) {
	l := newLeaving(servicetest.Parallel(t))
	job := fencing.Source{JobID: 7, Worker: "destroy_group"}
	short := fencing.Limits{Statement: 200 * time.Millisecond, Lock: 100 * time.Millisecond}
	// The step after the deletion fails, is cancelled, or never comes.
	for _, breaks := range [][2]string{
		{`ALTER TABLE maintenance.receipts ADD CONSTRAINT no CHECK (false) NOT VALID`, `ALTER TABLE maintenance.receipts DROP CONSTRAINT no`},
		{`CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(9); RETURN NULL; END';
			CREATE TRIGGER nap AFTER INSERT ON maintenance.outside_paths FOR EACH ROW EXECUTE FUNCTION nap()`, `DROP FUNCTION nap CASCADE`},
		{`ALTER TABLE maintenance.outside_paths ADD CONSTRAINT no CHECK (false) NOT VALID`, `ALTER TABLE maintenance.outside_paths DROP CONSTRAINT no`},
	} {
		l.exec(breaks[0])
		if r, err := l.delete(short, job); err == nil {
			t.Errorf("%s: %+v", breaks[0], r)
		}
		l.exec(breaks[1])
		l.want(`SELECT count(*) FROM t WHERE owner = 1`, "4")
		l.wantNoted("NULL")
	}
	for range 2 {
		if r, err := l.delete(generous, job); err != nil || r.Changed != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	// A second try finds and records nothing.
	r := assert.Must(l.delete(generous, job))(t)
	assert.That(t, r.Changed == 0, "%+v", r)
	l.wantNoted("p0 project_repository 7 t, p4 project_repository 7 t, p6 project_repository 7 t")
	outcome, err := l.Jobs.JobChanges(context.Background(), 7)
	assert.That(t, err == nil && outcome.Outside == (jobqueue.OutsideCount{All: 3, Pending: 3}) && outcome.Tables[0].Deleted == 4,
		"%+v, %v", outcome, err)
}

func TestOutside_PathsAreListedMarkedAndPruned(t *testing.T) {
	l := newLeaving(servicetest.Parallel(t))
	const run = "0190a1b2-0000-7000-8000-000000000001"
	for _, by := range []fencing.Source{{JobID: 7}, {RunID: run}} {
		assert.Must(l.delete(generous, by))(t)
	}
	ctx := context.Background()
	list := func(f rowset.OutsideFilter) (paths string) {
		t.Helper()
		f.Limit = 1
		for {
			page := assert.Must(l.Outside.ListOutside(ctx, f))(t)
			if len(page) == 0 {
				return paths
			}
			paths, f.After = paths+page[0].Path+" ", page[0].ID
		}
	}
	for want, f := range map[string]rowset.OutsideFilter{
		"p0 p4 p6 ": {}, "p0 ": {JobID: 7}, "p4 p6 ": {RunID: run}, "": {JobID: 8}, "p6 ": {Pending: true, After: 2},
	} {
		got := list(f)
		assert.That(t, got == want, "%+v: %s, want %s", f, got, want)
	}
	if done, unknown, err := l.Outside.AckOutside(ctx, []int64{1, 9, 8}, "ann"); err != nil || len(done) > 0 || len(unknown) != 2 || unknown[0] != 8 {
		t.Errorf("%+v, %v, %v", done, unknown, err)
	}
	l.want(`SELECT count(*) FROM maintenance.outside_paths WHERE done_at IS NOT NULL`, "0")
	for _, by := range []string{"ann", "bob"} {
		done, _, err := l.Outside.AckOutside(ctx, []int64{2, 1, 2}, by)
		assert.That(t, err == nil && len(done) == 2 && done[0].DoneBy == "ann" &&
			!done[1].DoneAt.IsZero() && done[0].JobID == 7 && done[1].RunID == run, "%+v, %v", done, err)
	}
	if got := list(rowset.OutsideFilter{Pending: true}); got != "p6 " {
		t.Error(got)
	}
	l.exec(`UPDATE maintenance.outside_paths SET done_at = now() - interval '2 days' WHERE id = 1;
		UPDATE maintenance.outside_paths SET at = now() - interval '9 years'`)
	if more, err := l.History.PruneHistory(ctx, 24*time.Hour); err != nil || more {
		t.Error(more, err)
	}
	if got := list(rowset.OutsideFilter{}); got != "p4 p6 " {
		t.Error(got)
	}
}

func TestPruneHistory_ExpiredProtectionsGoAndCancellationsOfWhatHasBegunStay(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1); INSERT INTO maintenance.user_removals (user_id, reason) VALUES (7, '');
		INSERT INTO maintenance.job_cancellations (job_id, user_id, group_id, reason, cancelled_by)
		VALUES (1, NULL, 10, 'r', 'ann'), (2, 7, NULL, 'r', 'ann'), (3, NULL, 11, 'r', 'ann'), (4, 8, NULL, 'r', 'ann')`)
	b.exec(`INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by, until)
		SELECT 'group', i, 'r', 'a', CASE WHEN i > 2 THEN now() - i * interval '1 minute' WHEN i > 1 THEN now() + interval '1 hour' END
		FROM generate_series(1, 1005) i`)
	for _, want := range []bool{true, false} {
		if more, err := b.History.PruneHistory(context.Background(), time.Hour); err != nil || more != want {
			t.Error(more, err)
		}
	}
	b.want(`SELECT string_agg(id::text, ' ' ORDER BY id) FROM maintenance.protected_targets`, "1 2")
	b.want(`SELECT string_agg(job_id::text, ' ' ORDER BY job_id) FROM maintenance.job_cancellations`, "1 2")
}
