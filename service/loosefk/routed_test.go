package loosefk_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// allRecords are the records of all queues, as "queue key".
const allRecords = `SELECT coalesce(string_agg(queue || ' ' || key, ', ' ORDER BY queue, key), 'none') FROM (
	SELECT 'first' AS queue, primary_key_value AS key FROM loose_foreign_keys_deleted_records
	UNION ALL SELECT 'project', primary_key_value FROM loose_foreign_keys_project_deleted_records
	UNION ALL SELECT 'user', primary_key_value FROM loose_foreign_keys_user_deleted_records) r`

// dueNow makes the records of all queues due.
const dueNow = `UPDATE loose_foreign_keys_deleted_records SET consume_after = now();
	UPDATE loose_foreign_keys_project_deleted_records SET consume_after = now();
	UPDATE loose_foreign_keys_user_deleted_records SET consume_after = now()`

// newRouted is a main with the parents 1 to 4 and two children of each. The trigger records 1 to 3 in the queue of
// projects, 2 and 3 in that of users, too, and 4 in the first one.
func newRouted(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY, project_id bigint, user_id bigint);
		INSERT INTO p SELECT i, CASE WHEN i < 4 THEN 100 + i END, CASE WHEN i IN (2, 3) THEN 200 + i END FROM generate_series(1, 4) i;
		INSERT INTO c (p_id) SELECT i FROM generate_series(1, 4) i, generate_series(1, 2)`)
	e.Route("main", "p", "project", "user")
	return e
}

func TestRouted_RecordsOfAllQueuesAreWorkedAndAKeyOfSeveralOnce(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE statements (n bigint); CREATE FUNCTION count_statement() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN INSERT INTO statements SELECT count(*) FROM gone HAVING count(*) > 0; RETURN NULL; END';
		CREATE TRIGGER counted AFTER DELETE ON c REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_statement()`)
	e.Exec("main", `DELETE FROM p`)
	e.Want("main", allRecords, "first 4, project 1, project 2, project 3, user 2, user 3")
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 100))
	b := servicetest.StatusOf(t, s, servicetest.LooseForeignKeys).Backlog
	assert.That(t, b.Pending == 6 && b.Due == 6, "backlog %+v, want 6 records", b)
	servicetest.WantCounts(t, servicetest.DryRun(t, s), "processed_records=6 deleted_rows=8")
	wantRun(t, s, "processed_records=6 deleted_rows=8")
	e.Want("main", allRecords, "none")
	e.Want("main", `SELECT string_agg(n::text, ' ') FROM statements`, "2 2 2 2")
}

func TestRouted_TheOldestRecordComesFirst(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	for i := range 4 {
		e.Exec("main", `DELETE FROM p WHERE id = $1`, 4-i)
	}
	// The limit is reached with the second key.
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(1, 3)), "main")
	servicetest.WantState(t, r, "succeeded")
	e.Want("main", allRecords, "project 1, project 2, project 3, user 2, user 3")
	e.Want("main", `SELECT string_agg(p_id::text, ' ' ORDER BY p_id) FROM c`, "1 1 2 2 3")
}

func TestRouted_ARecordThatIsNotDueStays(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `DELETE FROM p WHERE id < 3`)
	e.Exec("main", `UPDATE loose_foreign_keys_user_deleted_records SET consume_after = now() + interval '1 hour'`)
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=2 deleted_rows=4")
	e.Want("main", allRecords, "user 2")
}

func TestRouted_RecordsOfAKeyEndTogetherOrNotAtAll(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `DELETE FROM p WHERE id = 2`)
	e.Exec("main", `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER no BEFORE DELETE ON loose_foreign_keys_user_deleted_records FOR EACH ROW EXECUTE FUNCTION no()`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), "failed")
	e.Want("main", allRecords, "project 2, user 2")
	e.Exec("main", `DROP TRIGGER no ON loose_foreign_keys_user_deleted_records`)
	wantRun(t, s, "processed_records=2")
	e.Want("main", allRecords, "none")
}

func TestRouted_DeadRecordsReturnToTheirQueues(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Mine("c", "OLD.p_id = 2", "23514")
	e.Exec("main", `DELETE FROM p`)
	s := e.Service(servicetest.OneChild)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantCounts(t, r, "processed_records=4 deleted_rows=6 rescheduled_records=2")
	keys := e.Keys(servicetest.OneChild)
	failing := assert.Must(keys.Failing(context.Background(), "p"))(t)
	assert.That(t, len(failing) == 2 && failing[0].Queue == "loose_foreign_keys_project_deleted_records" && failing[0].Failures == 1, "%+v", failing)
	e.Exec("main", `UPDATE maintenance.routed_record_failures SET failures = 9`)
	e.Exec("main", dueNow)
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "dead_records=2")
	e.Want("main", `SELECT string_agg(concat_ws(' ', queue, owner), ', ' ORDER BY queue) FROM maintenance.dead_records`,
		"loose_foreign_keys_project_deleted_records 102, loose_foreign_keys_user_deleted_records 202")
	e.Want("main", `SELECT count(*) FROM maintenance.routed_record_failures`, "0")
	e.Exec("main", `DROP TRIGGER mine ON c`)
	done := assert.Must(keys.Retry(context.Background(), nil, "p"))(t)
	assert.That(t, len(done) == 1 && done[0].Records == 2, "put back: %+v", done)
	e.Want("main", allRecords, "project 2, user 2")
	e.Want("main", `SELECT project_id FROM loose_foreign_keys_project_deleted_records`, "102")
	wantRun(t, s, "processed_records=2 deleted_rows=2")
}

func TestRouted_ChildrenOfLivingParentsStay(t *testing.T) {
	for name, c := range map[string]struct{ sql, counts, held, clean, remaining string }{
		"rows moved":     {`WITH gone AS (DELETE FROM p RETURNING *) INSERT INTO p SELECT * FROM gone`, "obsolete_records=6", "none", "", "1 2 3 4"},
		"key used again": {`DELETE FROM p; INSERT INTO p (id) VALUES (2), (4)`, "processed_records=3 deleted_rows=4 rescheduled_records=3", "first 4, project 2, user 2", "processed_records=3 deleted_rows=4", "2 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newRouted(t)
			for sql := range strings.SplitSeq(c.sql, "; ") {
				e.Exec("main", sql)
			}
			s := e.Service(servicetest.OneChild)
			servicetest.WantCounts(t, servicetest.DryRun(t, s), c.counts)
			wantRun(t, s, c.counts)
			e.Want("main", allRecords, c.held)
			e.Want("main", `SELECT string_agg(DISTINCT p_id::text, ' ') FROM c`, c.remaining)
			if c.clean != "" {
				done := assert.Must(e.Keys(servicetest.OneChild).DecideReused(context.Background(), "p", true))(t)
				assert.That(t, len(done) == 1 && done[0].Records == 3, "released: %+v", done)
				wantRun(t, s, c.clean)
				e.Want("main", allRecords, "none")
			}
		})
	}
}

func TestRouted_LintKnowsTheQueues(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `DROP TABLE vulnerabilities CASCADE; ALTER TABLE p ENABLE ALWAYS TRIGGER p_loose_fk_trigger; DELETE FROM p`)
	keys := e.Keys(servicetest.OneChild)
	wantFindings(t, keys)
	e.Exec("main", `DROP INDEX index_loose_foreign_keys_project_records_for_query; ALTER TABLE loose_foreign_keys_user_deleted_records ALTER partition SET DEFAULT 7;
		DROP TABLE loose_foreign_keys_organization_deleted_records`)
	wantFindings(t, keys, "error queue_shape main public.loose_foreign_keys_project_deleted_records",
		"error queue_shape main public.loose_foreign_keys_user_deleted_records")
	e.Route("main", "p", "organization")
	wantFindings(t, keys, "error queue_shape main public.loose_foreign_keys_project_deleted_records",
		"error queue_shape main public.loose_foreign_keys_user_deleted_records", "error trigger_form main public.p")
}

func TestRouted_TrackingLeavesARoutedTriggerAsItIs(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	tracked := assert.Must(e.Keys("").Track(context.Background(), "p", ""))(t)
	assert.That(t, len(tracked.Triggers) == 0, "made %q", tracked.Triggers)
}

func TestRouted_ManyRecordsOfTheSameKeysAreWorkedTogether(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO p SELECT i, i, i FROM generate_series(10, 12009) i`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(10, 12009) i`)
	e.Exec("main", `DELETE FROM p WHERE id > 9`)
	wantRun(t, e.Service(servicetest.OneChild, unhurried), "processed_records=24000 deleted_rows=12000")
	e.Want("main", allRecords, "none")
}

func TestRouted_AQueueThatIsNotPartitionedFailsTheRun(t *testing.T) {
	e := newRouted(servicetest.Parallel(t))
	e.Exec("main", `DROP TABLE loose_foreign_keys_user_deleted_records; CREATE TABLE loose_foreign_keys_user_deleted_records (id uuid)`)
	wantFailedRun(t, e.Service(servicetest.OneChild), "loose_foreign_keys_user_deleted_records on main is not partitioned: caretaker lfk lint says what it should look like", "")
}
