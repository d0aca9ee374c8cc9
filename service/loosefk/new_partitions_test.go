package loosefk_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
	var said bytes.Buffer
	s := e.Service(visitsChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	if r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, DryRun: true}); err != nil || r.State != repo.RunSucceeded {
		t.Fatal(r.State, err)
	}
	e.Want("main", tracked, firstVisits)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	const long = "a_name_that_leaves_no_room_for_the_ending_of_the_trigger visits_loose_fk_trigger, "
	e.Want("main", tracked, `"o'dd \x" o'dd \x_loose_fk_trigger, `+long+bothVisits)
	assert.That(t, strings.Contains(said.String(), "new partitions of tracked tables are tracked"), "log %q", said.String())
	e.Exec("main", `INSERT INTO visits VALUES (7, 2), (8, 2), (9, 1); INSERT INTO c (p_id) VALUES (7), (8), (9); DELETE FROM "o'dd \x" WHERE id = 7;
		DELETE FROM visits WHERE id = 8`)
	e.Want("main", `SELECT string_agg(fully_qualified_table_name || primary_key_value, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records`,
		"public.visits7 public.visits8")
	wantRun(t, s, "processed_records=2 deleted_rows=2")
	e.Exec("main", `DROP TABLE "o'dd \x"`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	e.Want("main", tracked, long+bothVisits)
}

func TestNewPartitions_AreLeftAloneWhereThatIsSwitchedOffAndWithGitLabsQueue(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2)`)
	s := e.Service(visitsChild, servicetest.With(func(c *loosefk.Config) { c.TrackPartitions = new(false) }))
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
	var said bytes.Buffer
	s := e.Service(visitsChild, func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Want("main", tracked, bothVisits)
	assert.That(t, strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "track partition public.visits_3"),
		"log %q", said.String())
	assert.Must(other.Exec(t.Context(), `COMMIT`))(t)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", tracked, bothVisits+", visits_3 visits_3_loose_fk_trigger")
}

// Before version 6 nobody noted which partitions were untracked on purpose.
func TestNewPartitions_ThatAnOlderVersionLeftUntrackedStaySo(t *testing.T) {
	e := newVisits(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2);
		DROP TABLE maintenance.untracked_partitions, maintenance.adopted_foreign_keys;
		DELETE FROM maintenance.schema_migrations WHERE version_id = 6`)
	assert.Must(e.Open[0].Migrate(t.Context()))(t)
	e.Exec("main", `CREATE TABLE visits_3 PARTITION OF visits FOR VALUES IN (3)`)
	servicetest.WantState(t, servicetest.RunBatch(t, e.Service(visitsChild), "main"), repo.RunSucceeded)
	e.Want("main", tracked, firstVisits+", visits_3 visits_3_loose_fk_trigger")
}

// A detachment that was interrupted hides the partition from statements on its table.
func TestLooseForeignKeysCleanup_APartitionWhoseDetachmentIsPendingIsCleaned(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint, part int) PARTITION BY LIST (part); CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
		CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2); CREATE INDEX ON c (p_id); INSERT INTO c SELECT i % 3 + 1, i % 2 + 1 FROM generate_series(1, 12) i`)
	reader := e.Connect("main")
	assert.Must(reader.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM c`))(t)
	detaching := e.Connect("main")
	assert.Must(detaching.Exec(t.Context(), `SET statement_timeout = '50ms'`))(t)
	_, err := detaching.Exec(t.Context(), `ALTER TABLE c DETACH PARTITION c_2 CONCURRENTLY`)
	servicetest.WantError(t, err, "57014")
	assert.Must(reader.Exec(t.Context(), `ROLLBACK`))(t)
	e.Want("main", `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`, "1")
	e.Deleted("main", "p", 1, 2)
	s := e.Service(servicetest.OneChild)
	servicetest.WantCounts(t, servicetest.DryRun(t, s), "processed_records=2 deleted_rows=8")
	wantRun(t, s, "processed_records=2 deleted_rows=8")
	e.Want("main", `SELECT string_agg(p_id::text, ' ') FROM c_2`, "3 3")
}
