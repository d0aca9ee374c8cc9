package lfk_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
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
	e := servicetest.NewOneChild(t).PlainQueue()
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY, project_id bigint, user_id bigint);
		INSERT INTO p SELECT i, CASE WHEN i < 4 THEN 100 + i END, CASE WHEN i IN (2, 3) THEN 200 + i END FROM generate_series(1, 4) i;
		INSERT INTO c (p_id) SELECT i FROM generate_series(1, 4) i, generate_series(1, 2)`)
	e.Route("main", "p", "project", "user")
	return e
}

func TestRouted_TheSwitchOfTestsMovesTheirRecords(t *testing.T) {
	t.Setenv(servicetest.Routed, "1")
	e := servicetest.NewDeletedParents(t, 2)
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (3)`)
	track(e, "p")
	e.Exec("main", `DELETE FROM p`)
	e.WantQueue("main", "1 2 3")
	e.PlainQueue().Want("main", allRecords, "project 1, project 2, project 3")
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=3 deleted_rows=6")
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
	e.Want("main", `SELECT sum(n) || ' rows, at most ' || max(n) FROM statements`, "8 rows, at most 2")
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
			e := newRouted(servicetest.Parallel(t))
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
	servicetest.WantFindings(t, keys)
	e.Exec("main", `DROP INDEX index_loose_foreign_keys_project_records_for_query; ALTER TABLE loose_foreign_keys_user_deleted_records ALTER partition SET DEFAULT 7;
		DROP TABLE loose_foreign_keys_organization_deleted_records`)
	servicetest.WantFindings(t, keys, "error queue_shape main public.loose_foreign_keys_project_deleted_records",
		"error queue_shape main public.loose_foreign_keys_user_deleted_records")
	e.Route("main", "p", "organization")
	servicetest.WantFindings(t, keys, "error queue_shape main public.loose_foreign_keys_project_deleted_records",
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
	e.Exec("main", `DROP TABLE loose_foreign_keys_user_deleted_records; CREATE TABLE loose_foreign_keys_user_deleted_records (id uuid);
		CREATE TABLE an_heir () INHERITS (loose_foreign_keys_user_deleted_records)`)
	wantFailedRun(t, e.Service(servicetest.OneChild), "loose_foreign_keys_user_deleted_records on main is not partitioned: run `caretaker lfk lint` to see the required form", "")
}

// newVisits is a main with a queue of our own, and a tracked parent with a partition.
func newVisits(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE TABLE visits (id bigint, month int, PRIMARY KEY (id, month)) PARTITION BY LIST (month);
		CREATE TABLE visits_1 PARTITION OF visits FOR VALUES IN (1);
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Install("visits")
	return e
}

const visitsChild = "c:\n  - {table: visits, column: p_id, on_delete: async_delete}\n"

// tracked are the triggers that fire always, with their table.
const tracked = `SELECT string_agg(tgrelid::regclass || ' ' || tgname, ', ' ORDER BY tgrelid::regclass::text) FROM pg_trigger
	WHERE NOT tgisinternal AND tgenabled = 'A'`

const (
	firstVisits = "visits visits_loose_fk_trigger, visits_1 visits_1_loose_fk_trigger"
	bothVisits  = firstVisits + ", visits_2 visits_2_loose_fk_trigger"
)

func TestNewPartitions_AreTrackedByTheRunThatFindsThem(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2, 3) PARTITION BY LIST (month);
		CREATE TABLE "o'dd \x" PARTITION OF visits_2 FOR VALUES IN (2);
		CREATE TABLE a_name_that_leaves_no_room_for_the_ending_of_the_trigger PARTITION OF visits FOR VALUES IN (4)`)
	var said servicetest.Buffer
	s := e.Service(visitsChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	if r, err := s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, DryRun: true}); err != nil || r.State != control.RunSucceeded {
		t.Fatal(r.State, err)
	}
	e.Want("main", tracked, firstVisits)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	const long = "a_name_that_leaves_no_room_for_the_ending_of_the_trigger visits_loose_fk_trigger, "
	e.Want("main", tracked, `"o'dd \x" o'dd \x_loose_fk_trigger, `+long+bothVisits)
	assert.That(t, strings.Contains(said.String(), "new partitions tracked"), "log %q", said.String())
	e.Exec("main", `INSERT INTO visits VALUES (7, 2), (8, 2), (9, 1); INSERT INTO c (p_id) VALUES (7), (8), (9); DELETE FROM "o'dd \x" WHERE id = 7;
		DELETE FROM visits WHERE id = 8`)
	e.Want("main", `SELECT string_agg(fully_qualified_table_name || primary_key_value, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records`,
		"public.visits7 public.visits8")
	wantRun(t, s, "processed_records=2 deleted_rows=2")
	e.Exec("main", `DROP TABLE "o'dd \x"`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", tracked, long+bothVisits)
}

func TestNewPartitions_AreLeftAloneWhereThatIsSwitchedOffAndWithGitLabsQueue(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2)`)
	s := e.Service(visitsChild, servicetest.With(func(c *lfk.Config) { c.TrackPartitions = new(false) }))
	wantRun(t, s, "")
	e.Want("main", tracked, firstVisits)
	e.Exec("main", `TRUNCATE maintenance.queue_partitions; ALTER TABLE loose_foreign_keys_deleted_records DROP key_values`)
	wantRun(t, e.Service(visitsChild), "")
	e.Want("main", tracked, firstVisits)
}

// TestNewPartitions_ThatSomebodyUntracksStaySo until their table is tracked again.
func TestNewPartitions_ThatSomebodyUntracksStaySo(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2)`)
	s, keys := e.Service(visitsChild), e.Keys(visitsChild)
	servicetest.RunBatch(t, s, "main")
	assert.Must(keys.Untrack(context.Background(), "visits_2"))(t)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", tracked, firstVisits)
	assert.Must(keys.Track(context.Background(), "visits", ""))(t)
	e.Want("main", tracked, bothVisits)
	e.Want("main", `SELECT count(*) FROM maintenance.untracked_partitions`, "0")
	e.Exec("main", `DROP TRIGGER visits_2_loose_fk_trigger ON visits_2`)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", tracked, bothVisits)
}

// TestNewPartitions_ThatAreLockedDoNotHoldARunUp: the other ones are tracked, the next run goes on.
func TestNewPartitions_ThatAreLockedDoNotHoldARunUp(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2); CREATE TABLE visits_3 PARTITION OF visits FOR VALUES IN (3);
		INSERT INTO visits VALUES (7, 1); INSERT INTO c (p_id) VALUES (7); DELETE FROM visits`)
	other := e.Connect("main")
	assert.Must(other.Exec(t.Context(), `BEGIN; LOCK TABLE visits_3 IN ROW EXCLUSIVE MODE`))(t)
	var said servicetest.Buffer
	s := e.Service(visitsChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Want("main", tracked, bothVisits)
	assert.That(t, strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "track partition public.visits_3"),
		"log %q", said.String())
	assert.Must(other.Exec(t.Context(), `COMMIT`))(t)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", tracked, bothVisits+", visits_3 visits_3_loose_fk_trigger")
}

// Before version 6 caretaker did not record which partitions were untracked on purpose.
func TestNewPartitions_ThatAnOlderVersionLeftUntrackedStaySo(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2);
		DROP TABLE maintenance.untracked_partitions, maintenance.adopted_foreign_keys;
		DELETE FROM maintenance.schema_migrations WHERE version_id = 6`)
	assert.Must(e.Open[0].Migrate(t.Context()))(t)
	e.Exec("main", `CREATE TABLE visits_3 PARTITION OF visits FOR VALUES IN (3)`)
	servicetest.WantState(t, servicetest.RunBatch(t, e.Service(visitsChild), "main"), control.RunSucceeded)
	e.Want("main", tracked, firstVisits+", visits_3 visits_3_loose_fk_trigger")
}

// A detachment that was interrupted hides the partition from statements on its table.
func TestLooseForeignKeysCleanup_APartitionWhoseDetachmentIsPendingIsCleaned(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint, part int) PARTITION BY LIST (part); CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
		CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2) PARTITION BY LIST (part); CREATE TABLE c_2_1 PARTITION OF c_2 DEFAULT;
		CREATE INDEX ON c (p_id); INSERT INTO c SELECT i % 3 + 1, i % 2 + 1 FROM generate_series(1, 12) i`)
	reader := e.Connect("main")
	assert.Must(reader.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM c`))(t)
	detaching, detached := e.Connect("main"), make(chan error, 1)
	go func() {
		_, err := detaching.Exec(t.Context(), `ALTER TABLE c DETACH PARTITION c_2 CONCURRENTLY`)
		detached <- err
	}()
	devdb.Eventually(t, "the detachment to wait for the reader", func() bool {
		return e.Value("main", `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`) == "1"
	})
	e.Exec("main", fmt.Sprintf(`SELECT pg_cancel_backend(%d)`, detaching.PgConn().PID()))
	servicetest.WantError(t, <-detached, "57014")
	assert.Must(reader.Exec(t.Context(), `ROLLBACK`))(t)
	e.Want("main", `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`, "1")
	e.Exec("main", `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'c_2_1'::regclass`) // one in the other
	e.Deleted("main", "p", 1, 2)
	s := e.Service(servicetest.OneChild)
	servicetest.WantCounts(t, servicetest.DryRun(t, s), "processed_records=2 deleted_rows=8")
	wantRun(t, s, "processed_records=2 deleted_rows=8")
	e.Want("main", `SELECT string_agg(p_id::text, ' ') FROM c_2_1`, "3 3")
}
