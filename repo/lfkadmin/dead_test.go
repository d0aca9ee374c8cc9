package lfkadmin_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
)

// buried makes a queue with dead records 1 to n, the odd ones of p, the even ones of other.q.
func buried(t *testing.T, n string) *bench {
	t.Helper()
	b := installed(t)
	b.exec(`INSERT INTO maintenance.dead_records
		(fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT CASE n % 2 WHEN 1 THEN 'public.p' ELSE 'other.q' END, n * 10, 'c.p_id -> p', 'P0001', 'no', 10, now() - interval '1 day'
		FROM generate_series(1, ` + n + `) n`)
	return b
}

func TestDeadRecords_ArePagedByID(t *testing.T) {
	b := buried(t, "5")
	for _, c := range []struct {
		filter lfkadmin.DeadRecordFilter
		after  int64
		want   []int64
	}{
		{lfkadmin.DeadRecordFilter{}, 0, []int64{1, 2, 3}},
		{lfkadmin.DeadRecordFilter{}, 3, []int64{4, 5}},
		{lfkadmin.DeadRecordFilter{Table: "p"}, 0, []int64{1, 3, 5}},
		{lfkadmin.DeadRecordFilter{Table: "public.p"}, 1, []int64{3, 5}},
		{lfkadmin.DeadRecordFilter{Table: "other.q"}, 0, []int64{2, 4}},
		{lfkadmin.DeadRecordFilter{Table: "q"}, 0, nil},
		{lfkadmin.DeadRecordFilter{ID: new(int64(4))}, 0, []int64{4}},
		{lfkadmin.DeadRecordFilter{ID: new(int64(4)), Table: "p"}, 0, nil},
	} {
		page, err := b.DeadRecords(context.Background(), c.filter, c.after, 3)
		var got []int64
		for _, r := range page {
			got = append(got, r.ID)
			if r.Key() != repo.IntKey(r.ID*10) || r.Definition != "c.p_id -> p" || r.SQLState != "P0001" || r.Message != "no" || r.Failures != 10 ||
				!r.RecordedAt.Before(r.DeadAt) {
				t.Errorf("got %+v", r)
			}
		}
		assert.That(t, err == nil && slices.Equal(got, c.want), "%+v after %d: got %v, %v, want %v", c.filter, c.after, got, err, c.want)
	}
}

func TestRetryDeadRecords_PutsThemBackAsNew(t *testing.T) {
	b := buried(t, "5")
	// Nothing is lost if the queue refuses.
	b.exec("ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 7")
	if n, err := b.RetryDeadRecords(context.Background(), lfkadmin.DeadRecordFilter{}); err == nil || n != 0 {
		t.Errorf("got %d, %v, want an error", n, err)
	}
	b.want("SELECT count(*) FROM maintenance.dead_records", "5")
	b.exec("ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 1")
	for _, c := range []struct {
		filter  lfkadmin.DeadRecordFilter
		n       int64
		records []string
	}{
		{lfkadmin.DeadRecordFilter{ID: new(int64(9))}, 0, nil},
		{lfkadmin.DeadRecordFilter{ID: new(int64(3))}, 1, []string{"public.p:30"}},
		{lfkadmin.DeadRecordFilter{Table: "p"}, 2, []string{"public.p:10", "public.p:50"}},
		{lfkadmin.DeadRecordFilter{}, 2, []string{"other.q:20", "other.q:40"}},
	} {
		n, err := b.RetryDeadRecords(context.Background(), c.filter)
		assert.That(t, err == nil && n == c.n, "%+v: got %d, %v, want %d", c.filter, n, err, c.n)
		b.want("SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE (partition, status, cleanup_attempts, consume_after > now(), created_at > now() - interval '1 minute') <> (1, 1, 0, false, false)", "0")
		b.wantRecords(c.records...)
	}
	b.want("SELECT count(*) FROM maintenance.dead_records", "0")
	b.exec("DROP TABLE loose_foreign_keys_deleted_records")
	_, err := b.RetryDeadRecords(context.Background(), lfkadmin.DeadRecordFilter{})
	b.wantRefusal(err, "there is no queue of deleted records")
}

func TestRetryDeadRecords_ManyGoInSeveralTransactions(t *testing.T) {
	b := buried(t, "2500")
	n, err := b.RetryDeadRecords(context.Background(), lfkadmin.DeadRecordFilter{})
	assert.That(t, err == nil && n == 2500, "got %d, %v", n, err)
	b.want("SELECT (count(*), count(DISTINCT xmin::text), count(DISTINCT primary_key_value)) FROM loose_foreign_keys_deleted_records", "(2500,3,2500)")
}

func TestRetryDeadRecords_SaysWhatBecomesOfThoseWhoseQueueIsGone(t *testing.T) {
	b := buried(t, "3")
	b.exec("UPDATE maintenance.dead_records SET queue = 'loose_foreign_keys_user_deleted_records', owner = 7 WHERE id > 1")
	n, err := b.RetryDeadRecords(t.Context(), lfkadmin.DeadRecordFilter{})
	assert.Equal(t, n, 1)
	b.wantRefusal(err, "2 dead records were not put back, their queue loose_foreign_keys_user_deleted_records does not exist")
	_, advised, _ := strings.Cut(err.Error(), "take them: ")
	b.exec(advised)
	n, err = b.RetryDeadRecords(t.Context(), lfkadmin.DeadRecordFilter{})
	assert.That(t, err == nil && n == 2, "%d, %v", n, err)
}

// TestValidate_TakesAsLongAsItNeeds: the role's own limit does not end it while it waits for a lock.
func TestValidate_TakesAsLongAsItNeeds(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p_id int);
		ALTER TABLE c ADD CONSTRAINT fk FOREIGN KEY (p_id) REFERENCES p NOT VALID`)
	b.exec(`BEGIN; LOCK TABLE c IN SHARE UPDATE EXCLUSIVE MODE`)
	patient := open(t, b.with("statement_timeout=300"))
	done := make(chan error, 1)
	go func() {
		done <- patient.Validate(context.Background(), lfkadmin.RealKey{Table: repo.Table{Schema: "public", Name: "c"}, Name: "fk"})
	}()
	watch := connect(t, b.url)
	devdb.Eventually(t, "the statement to wait for longer than the role's limit", func() (waits bool) {
		err := watch.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '400 ms'`).Scan(&waits)
		return waits || err != nil || len(done) > 0
	})
	b.exec(`COMMIT`)
	assert.NoError(t, <-done)
	b.want(`SELECT convalidated FROM pg_constraint WHERE conname = 'fk'`, "true")
}
