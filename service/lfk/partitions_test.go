package lfk_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// newOwnQueue is a main whose queue `caretaker lfk install` has made, with a tracked parent p and its child c.
func newOwnQueue(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE SCHEMA gitlab_partitions_dynamic`)
	return withOwnQueue(e)
}

// withOwnQueue installs the queue, and tracks parents p.
func withOwnQueue(e *servicetest.Estate) *servicetest.Estate {
	t := e.T
	t.Helper()
	if _, err := admin.New(e.Open[0].Database).InstallQueue(context.Background()); err != nil {
		t.Fatal(err)
	}
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id)`)
	if _, err := admin.New(e.Open[0].Database).Track(context.Background(), "p", ""); err != nil {
		t.Fatal(err)
	}
	return e
}

// deleteParents deletes these parents, which have a child each.
func deleteParents(e *servicetest.Estate, first, last int) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO p SELECT generate_series($1::int, $2::int)`, first, last)
	e.Exec("main", `INSERT INTO c SELECT generate_series($1::int, $2::int)`, first, last)
	e.Exec("main", `DELETE FROM p WHERE id BETWEEN $1 AND $2`, first, last)
}

func active(e *servicetest.Estate, age string) {
	e.T.Helper()
	e.Exec("main", `UPDATE maintenance.queue_partitions SET active_since = now() - $1::text::interval`, age)
}

// partitions are the leaves of the queue by their bounds, and which of them is the default.
const partitions = `SELECT string_agg(bound, ' ' ORDER BY bound::int) || ', default ' || (
	SELECT substring(pg_get_expr(adbin, adrelid) FROM '[0-9]+') FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
	WHERE d.adrelid = 'loose_foreign_keys_deleted_records'::regclass AND a.attname = 'partition')
	FROM pg_inherits, LATERAL (SELECT substring(pg_get_expr(relpartbound, oid) FROM '[0-9]+') AS bound FROM pg_class WHERE oid = inhrelid) b
	WHERE inhparent = 'loose_foreign_keys_deleted_records'::regclass`

// addPartitions creates further partitions of an own queue and makes one of them the default.
func addPartitions(e *servicetest.Estate, active int, numbers ...int) {
	e.T.Helper()
	for _, n := range numbers {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_%d
			PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (%d)`, n, n))
		e.Exec("main", `INSERT INTO maintenance.queue_partitions VALUES ($1, now())`, n)
	}
	e.Exec("main", fmt.Sprintf(`ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT %d`, active))
}

func TestPartitions_AreRolledOnceTheActiveOneIsADayOldAndUsed(t *testing.T) {
	for _, c := range []struct {
		name, age   string
		used        bool
		want, lands string
	}{
		{"old and used", "25 hours", true, "1 2, default 2", "2"},
		{"old and unused", "25 hours", false, "1, default 1", "1"},
		{"young and used", "23 hours", true, "1, default 1", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newOwnQueue(servicetest.Parallel(t))
			if c.used {
				deleteParents(e, 1, 3)
			}
			active(e, c.age)
			s := e.Service(servicetest.OneChild)
			servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
			e.WantQueue("main", "")
			e.Want("main", partitions, c.want)
			deleteParents(e, 4, 4)
			e.Want("main", `SELECT partition FROM loose_foreign_keys_deleted_records`, c.lands)
			wantRun(t, s, "processed_records=1 deleted_rows=1")
			e.Want("main", `SELECT count(*) FROM c`, "0")
		})
	}
}

func TestPartitions_ARolledOutOneIsDroppedByTheNextRun(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	deleteParents(e, 1, 3)
	active(e, "25 hours")
	s := e.Service(servicetest.OneChild)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", `SELECT reloptions::text FROM pg_class WHERE relname = 'loose_foreign_keys_deleted_records_2'`, "{autovacuum_vacuum_scale_factor=0.01}")
	e.Want("main", `SELECT active_since > now() - interval '1 minute' FROM maintenance.queue_partitions WHERE partition = 2`, "true")
	servicetest.RunBatch(t, s, "main")
	e.Want("main", partitions, "2, default 2")
	e.Want("main", `SELECT string_agg(partition::text, ' ') FROM maintenance.queue_partitions`, "2")
	e.Want("main", `SELECT to_regclass('gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_1')`, "NULL")
}

// Kept are those with a record for later, of an unknown parent or without a time, the active one, and a higher one. Records
// of another status go with their partition.
func TestPartitions_AreDroppedAtAnyPositionWhenNothingIsPending(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	addPartitions(e, 6, 2, 3, 4, 5, 6, 7)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value, consume_after, status)
		VALUES (1, 'public.p', 1, now() + interval '1 day', 1), (3, 'public.unknown', 1, now(), 1), (4, 'public.p', 1, now(), 2),
		(5, 'public.unknown', 1, NULL, 1)`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.DryRun(t, s), control.RunSucceeded)
	e.Want("main", partitions, "1 2 3 4 5 6 7, default 6")
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", partitions, "1 3 5 6 7, default 6")
}

func TestPartitions_MissingDefaultIsMended(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	addPartitions(e, 5, 2)
	assert.Must(e.SQL["main"].Exec(t.Context(), `INSERT INTO p VALUES (1)`))(t)
	_, err := e.SQL["main"].Exec(t.Context(), `DELETE FROM p`)
	assert.Require(t, err != nil, "the deletion succeeds, though there is no partition for its record")
	var said servicetest.Buffer
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	assert.That(t, strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "partition=5"), "log %q", said.String())
	e.Exec("main", `DELETE FROM p`)
	e.Want("main", `SELECT partition FROM loose_foreign_keys_deleted_records`, "5")
	e.Want("main", partitions, "2 5, default 5")
}

func TestPartitions_OfGitLabsQueueAreLeftAlone(t *testing.T) {
	t.Parallel()
	for _, missing := range []bool{false, true} {
		e := servicetest.NewDeletedParents(t, 3)
		e.Exec("main", `CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_2 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (2);
			CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_3 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (3);
			UPDATE loose_foreign_keys_deleted_records SET created_at = now() - interval '9 days'`)
		if missing {
			e.Exec("main", `ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 7`)
		}
		const catalogue = `SELECT string_agg(concat_ws(' ', oid, relname, xmin, reloptions), ', ' ORDER BY oid) FROM pg_class WHERE relname LIKE '%loose_foreign_keys_deleted_records%'`
		before, layout := e.Value("main", catalogue), e.Value("main", partitions)
		wantRun(t, e.Service(servicetest.OneChild), "processed_records=3 deleted_rows=9")
		e.Want("main", catalogue, before)
		e.Want("main", partitions, layout)
		e.Want("main", `SELECT count(*) FROM maintenance.queue_partitions`, "0")
	}
}

func TestPartitions_RollIsPutOffWhileADeletionIsOpen(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	deleteParents(e, 1, 3)
	active(e, "25 hours")
	e.Exec("main", `INSERT INTO p SELECT generate_series(10, 5000)`)
	open := e.Connect("main")
	assert.Must(open.Exec(t.Context(), `BEGIN; DELETE FROM p WHERE id = 10`))(t)
	// Others go on deleting. Their wait for us is far below this timeout.
	var over atomic.Bool
	var wait sync.WaitGroup
	for i := range 2 {
		conn := e.Connect("main")
		wait.Go(func() {
			if _, err := conn.Exec(context.Background(), `SET lock_timeout = '500ms'`); err != nil {
				t.Error(err)
			}
			for id := 11 + i; id <= 5000 && !over.Load(); id += 2 {
				if _, err := conn.Exec(context.Background(), `DELETE FROM p WHERE id = $1`, id); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var said servicetest.Buffer
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	r := servicetest.RunBatch(t, s, "main")
	over.Store(true)
	wait.Wait()
	servicetest.WantState(t, r, control.RunSucceeded)
	assert.That(t, r.Counts["processed_records"] >= 3 && r.Counts["deleted_rows"] == 3, "counts %v", r.Counts)
	e.Want("main", partitions, "1, default 1")
	assert.That(t, strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "next run"), "log %q", said.String())
	assert.Must(open.Exec(t.Context(), `COMMIT`))(t)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", partitions, "1 2, default 2")
}

// A deletion that commits while its partition is about to be dropped must not be lost.
func TestPartitions_ADeletionThatIsNotYetCommittedKeepsItsPartition(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	addPartitions(e, 9, 9)
	s := e.Service(servicetest.OneChild)
	insert := e.Connect("main")
	for i := 2; i < 8; i++ {
		addPartitions(e, 9, i)
		e.Exec("main", `INSERT INTO c VALUES ($1)`, i)
		if _, err := insert.Exec(t.Context(), fmt.Sprintf(`BEGIN; INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value)
			VALUES (%d, 'public.p', %d)`, i, i)); err != nil {
			t.Fatal(err)
		}
		r := servicetest.Begin(t, s, "main")
		devdb.Eventually(t, "the drop to wait for the deletion, or to have given up", func() bool {
			return e.Value("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND wait_event_type = 'Lock'`) == "true" ||
				e.Value("main", `SELECT state <> 'running' FROM maintenance.runs WHERE id = '`+r.ID+`'`) == "true"
		})
		assert.Must(insert.Exec(t.Context(), `COMMIT`))(t)
		servicetest.WantState(t, servicetest.Ended(t, s, r.ID), control.RunSucceeded)
	}
	servicetest.RunBatch(t, s, "main")
	servicetest.RunBatch(t, s, "main")
	e.Want("main", `SELECT count(*) FROM c`, "0")
	e.Want("main", partitions, "9, default 9")
}

// With leaves for any values, a run works the records that count as due, and touches no leaf but
// caretaker's own.
func TestPartitions_LeavesOfSeveralNumbersAndOfAllOthersAreWorked(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE gitlab_partitions_dynamic.several PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (7, 5, -3, 0);
		CREATE TABLE gitlab_partitions_dynamic.others PARTITION OF loose_foreign_keys_deleted_records DEFAULT;
		INSERT INTO c SELECT generate_series(1, 8);
		INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value, status)
		VALUES (1, 'public.p', 1, 1), (5, 'public.p', 2, 1), (7, 'public.p', 3, 1), (-3, 'public.p', 4, 1), (0, 'public.p', 5, 1),
			(300, 'public.p', 6, 1), (300, 'public.p', 7, 1), (12, 'public.p', 8, 2);
		INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value, consume_after)
		VALUES (40, 'public.p', 8, now() + interval '1 day'), (5, 'public.p', 8, now() + interval '1 day')`)
	active(e, "25 hours")
	s := e.Service(servicetest.OneChild, servicetest.Batches(2, 0))
	b := servicetest.Status(t, s).Backlog
	assert.That(t, b.Due == 7 && b.Deferred == 2, "backlog %+v", b)
	wantWithinLimits(t, wantRun(t, s, "processed_records=7 deleted_rows=7"))
	e.WantQueue("main", "8 8 8")
	e.Want("main", `SELECT to_regclass('gitlab_partitions_dynamic.several') || ' ' || to_regclass('gitlab_partitions_dynamic.others')`,
		"gitlab_partitions_dynamic.several gitlab_partitions_dynamic.others")
	// The next number is one that no leaf has, nor a record.
	e.Want("main", `SELECT string_agg(partition::text, ' ') FROM maintenance.queue_partitions`, "1 301")
}

// A number without a leaf of its own goes to the one for all others: nothing is missing.
func TestPartitions_ADefaultLeafTakesTheActiveNumber(t *testing.T) {
	e := newOwnQueue(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE gitlab_partitions_dynamic.others PARTITION OF loose_foreign_keys_deleted_records DEFAULT;
		ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 77`)
	deleteParents(e, 1, 3)
	wantWithinLimits(t, wantRun(t, e.Service(servicetest.OneChild), "processed_records=3 deleted_rows=3"))
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.unknown', 1)`)
	servicetest.WantFindings(t, e.Keys(servicetest.OneChild), "error pending_without_definition main public.unknown")
}

// Where GitLab's schema for partitions is missing they lie in our own. Those that there are show
// the next one its place.
func TestPartitions_LieWhereTheNewestLies(t *testing.T) {
	t.Parallel()
	e := withOwnQueue(servicetest.New(t, "", "main"))
	s := e.Service(servicetest.OneChild)
	roll := func(first int, want string) {
		t.Helper()
		deleteParents(e, first, first)
		active(e, "25 hours")
		servicetest.RunBatch(t, s, "main")
		e.Want("main", `SELECT string_agg(i.inhrelid::regclass::text, ' ' ORDER BY i.inhrelid)
			FROM pg_inherits i WHERE i.inhparent = 'loose_foreign_keys_deleted_records'::regclass`, want)
	}
	const queue = "maintenance.loose_foreign_keys_deleted_records_"
	roll(1, queue+"1 "+queue+"2")
	e.Exec("main", `CREATE SCHEMA gitlab_partitions_dynamic`)
	roll(2, queue+"2 "+queue+"3")
	e.Exec("main", `CREATE SCHEMA elsewhere; ALTER TABLE `+queue+`3 SET SCHEMA elsewhere`)
	const moved = "elsewhere.loose_foreign_keys_deleted_records_"
	roll(3, moved+"3 "+moved+"4")
}

// A statement whose snapshot is older than a move finds the deleted row alone: it has to count the rows to know.
func TestLooseForeignKeysCleanup_RowsThatMoveBetweenPartitionsWhileAStatementWorksAreDeleted(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE EXTENSION dblink; CREATE SEQUENCE turns; CREATE TABLE c (p_id bigint, part int) PARTITION BY LIST (part);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1); CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2); CREATE INDEX ON c (p_id);
		INSERT INTO c SELECT i, 1 FROM generate_series(1, 12) i;
		CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF current_query() LIKE '%guard%' AND nextval('turns') BETWEEN 2 AND 6 THEN
				PERFORM dblink_exec('`+e.URLs["main"]+`', 'WITH gone AS (DELETE FROM c RETURNING p_id, part) INSERT INTO c SELECT p_id, 3 - part FROM gone');
			END IF; RETURN NULL; END $$;
		CREATE TRIGGER move BEFORE DELETE ON c FOR EACH STATEMENT EXECUTE FUNCTION move()`)
	e.Deleted("main", "p", 1, 12)
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0))
	devdb.Eventually(t, "no record is left", func() bool {
		servicetest.RunBatch(t, s, "main")
		dueAgain(e, "main")
		return e.Value("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`) == "0"
	})
	e.Want("main", `SELECT (SELECT count(*) FROM c) || ' ' || (last_value > 6) FROM turns`, "0 true")
}
