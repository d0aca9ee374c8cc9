package lfk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// fileLikeGitLabs has 330 definitions of 240 children and 45 parents, one of which has 153.
// projects and c are there.
func fileLikeGitLabs() string {
	var file strings.Builder
	n := 0
	for child := range 240 {
		fmt.Fprintf(&file, "child_%03d:\n", child)
		for range 1 + (child+1)%2 - child/180*((child+1)%2) {
			parent := "projects"
			if n >= 153 {
				parent = fmt.Sprintf("parent_%02d", n%44)
			}
			fmt.Fprintf(&file, "  - {table: %s, column: column_%d, on_delete: async_delete, worker_class: Some::Worker}\n", parent, n)
			n++
		}
	}
	return file.String()
}

func TestLooseForeignKeysCleanup_AFileLikeGitLabsHoldsRecordsUntilMissingChildrenAreAccepted(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE child_000 (id bigserial PRIMARY KEY, column_0 bigint, column_1 bigint)`)
	e.Exec("ci", `CREATE TABLE child_001 (id bigserial PRIMARY KEY, column_2 bigint)`)
	e.Exec("main", `INSERT INTO child_000 (column_0, column_1) VALUES (1, 9), (9, 1), (9, 9)`)
	e.Exec("ci", `INSERT INTO child_001 (column_2) VALUES (1), (9)`)
	e.Deleted("main", "projects", 1, 1)
	var log servicetest.Buffer
	s := e.Service(fileLikeGitLabs(), log.Keep)
	r := wantRun(t, s, "rescheduled_records=1 deleted_rows=3")
	assert.Contains(t, r.Reason, "1 record held, ", " child_002 (did you mean child_000?), ", " child_006 (did you mean child_000?) and ", " more: ")
	e.Want("main", `SELECT count(*) FROM child_000`, "1")
	e.Want("ci", `SELECT count(*) FROM child_001`, "1")
	servicetest.RunBatch(t, s, "main")
	servicetest.RunBatch(t, s, "ci")
	warnings := log.Lines("child tables not found, records held")
	assert.Require(t, len(warnings) == 1, "%d warnings, want one of all missing children", len(warnings))
	for child := range 240 {
		name := fmt.Sprintf("child_%03d", child)
		missing := child > 1
		assert.That(t, strings.Contains(warnings[0], name) == missing, "%s in the warning: %t, want %t", name, !missing, missing)
	}
	// Several commands at once all succeed.
	var wait sync.WaitGroup
	for range 4 {
		keys := e.Keys(fileLikeGitLabs())
		wait.Go(func() {
			if _, err := keys.AcceptAbsent(context.Background(), nil, "me"); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	e.Want("main", `SELECT count(*) FROM maintenance.absent_children`, "238")
	dueAgain(e, "main")
	wantRun(t, s, "processed_records=1")
}

func TestLooseForeignKeysCleanup_WithoutDefinitionsNothingIsDone(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Deleted("main", "p", 1, 3)
	s := e.Service("")
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
	_, ok := errors.AsType[*fault.NotConfiguredError](err)
	assert.That(t, ok, "RunBatch: %v, want a *NotConfiguredError", err)
	servicetest.WantCondition(t, s, status.ConditionNotConfigured)
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	wantRun(t, e.Service("# nothing yet\n"), "")
	e.WantQueue("main", "1 2 3")
}

func TestLooseForeignKeysCleanup_RecordsOfParentsWithoutDefinitionsStay(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	e.Deleted("main", "p", 1, 2)
	e.Deleted("main", "unknown", 1, 3)
	e.Deleted("main", "orphaned", 1, 4)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		VALUES ('other.p', 1), ('p', 1), ('publicp', 1), ('PUBLIC.p', 1)`)
	before := e.Value("main", `SELECT string_agg(q::text, ',' ORDER BY id) FROM loose_foreign_keys_deleted_records q WHERE fully_qualified_table_name <> 'public.p'`)
	s := e.Service(`
c:
  - {table: p, column: p_id, on_delete: async_delete}
absent:
  - {table: orphaned, column: p_id, on_delete: async_delete}
`)
	e.Exec("main", `INSERT INTO maintenance.absent_children (child, accepted_by) VALUES ('absent', 'me')`)
	r := wantRun(t, s, "processed_records=2")
	assert.That(t, !r.OverLimit, "over_limit, though nothing that has definitions is left")
	e.Want("main", `SELECT string_agg(q::text, ',' ORDER BY id) FROM loose_foreign_keys_deleted_records q`, before)
	st := servicetest.Status(t, s)
	b := st.Backlog
	assert.That(t, b.Pending == 11 && b.Due == 11, "backlog %+v, want 11 pending and due", b)
	assert.Contains(t, st.ConditionDetail, "public.unknown", "public.orphaned", "other.p")
}

func TestLooseForeignKeysCleanup_OnlyWritableTablesAreHomes(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci", "sec")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
		INSERT INTO c (p_id) VALUES (1);
		CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'read-only'; END $$;
		CREATE TRIGGER gitlab_schema_write_trigger_for_c BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON c
			FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	e.Exec("sec", `CREATE TABLE real_c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO real_c (p_id) VALUES (1);
		CREATE VIEW c AS SELECT * FROM real_c`)
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	const definitions = "c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"
	wantRun(t, e.Service(definitions), "processed_records=1 deleted_rows=1")
	e.Want("ci", `SELECT p_id FROM c`, "2")
	e.Want("main", `SELECT count(*) FROM c`, "1")
	e.Want("sec", `SELECT count(*) FROM real_c`, "1")

	// The trigger switched off, the table is one like any other. homes are searched for at the start
	// of each run.
	e.Exec("main", `ALTER TABLE c DISABLE TRIGGER gitlab_schema_write_trigger_for_c`)
	e.Deleted("main", "p", 1, 1)
	wantRun(t, e.Service(definitions), "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT count(*) FROM c`, "0")
}

func TestLooseForeignKeysCleanup_NamesAreLiteral(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE "Weird ""Name"".$1 {child}" ("select" serial, "Parent; DROP TABLE users" bigint, "user" text, "{column}" text)`)
	e.Exec("main", `INSERT INTO "Weird ""Name"".$1 {child}" VALUES
		(1, 1, 'it''s', NULL), (2, 1, 'its', NULL), (3, 2, 'it''s', NULL), (4, 1, 'it''s', 'don''t')`)
	e.Exec("main", `CREATE TABLE "weird ""name"".$1 {child}" ("Parent; DROP TABLE users" bigint)`)
	e.Exec("main", `INSERT INTO "weird ""name"".$1 {child}" VALUES (1)`)
	e.Deleted("main", `Order's "x"`, 1, 1)
	e.Deleted("main", `order's "x"`, 2, 2)
	wantRun(t, e.Service(`
'"Weird ""Name"".$1 {child}"':
  - table: 'Order''s "x"'
    column: 'Parent; DROP TABLE users'
    on_delete: update_column_to
    target_column: '{column}'
    target_value: "don't; $1 {child}"
    conditions: [{column: user, value: "it's"}]
  - table: 'Order''s "x"'
    column: 'Parent; DROP TABLE users'
    on_delete: async_nullify
    conditions: [{column: select, value: 2}]
`), "processed_records=1 updated_rows=3")
	e.Want("main", `SELECT string_agg(c::text, ' ' ORDER BY "select") FROM "Weird ""Name"".$1 {child}" c`,
		`(1,1,it's,"don't; $1 {child}") (2,,its,) (3,2,it's,) (4,1,it's,"don't; $1 {child}")`)
	e.Want("main", `SELECT count(*) FROM "weird ""name"".$1 {child}"`, "1")
	e.Want("main", `SELECT fully_qualified_table_name FROM loose_foreign_keys_deleted_records`, `public.order's "x"`)
}

func TestLooseForeignKeysCleanup_ASchemaThatComesBeforeTheQueueIsReported(t *testing.T) {
	t.Parallel()
	const without, second = "is in schema public, but schema caretaker comes first", "was public.loose_foreign_keys_deleted_records, but now resolves to caretaker."
	for name, c := range map[string]struct {
		seen   bool // a run has worked the queue before
		second bool // the schema gets a queue of its own
		want   string
	}{
		"before the first run": {false, false, without},
		"after a run":          {true, false, without},
		"with a second queue":  {true, true, second},
	} {
		t.Run(name, func(t *testing.T) {
			e := withOwnQueue(servicetest.New(servicetest.Parallel(t), "", "main"))
			keys, s := e.Keys(servicetest.OneChild), e.Service(servicetest.OneChild)
			if c.seen {
				deleteParents(e, 1, 1)
				wantRun(t, s, "processed_records=1 deleted_rows=1")
			}
			e.Exec("main", `CREATE SCHEMA caretaker`) // the name of the role
			_, err := keys.Install(t.Context())
			servicetest.WantError(t, err, without, "put schema public first in search_path")
			if c.second {
				e.Exec("main", `CREATE TABLE loose_foreign_keys_deleted_records (LIKE public.loose_foreign_keys_deleted_records INCLUDING ALL) PARTITION BY LIST (partition);
					CREATE TABLE first PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (1)`)
			}
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, control.RunFailed)
			assert.That(t, strings.Contains(r.Error, c.want), "error %q", r.Error)
			assert.Equal(t, servicetest.Status(t, s).Failing.Class, status.FailureSchema)
			_, lint := keys.Lint(t.Context())
			servicetest.WantError(t, lint, c.want)

			keys.Schema = "caretaker"
			_, err = keys.Install(t.Context())
			servicetest.WantError(t, err, "runs would no longer process the queue public.loose_foreign_keys_deleted_records", "tables with triggers: p")
			e.Exec("main", `DROP TRIGGER p_loose_fk_trigger ON public.p`)
			assert.Must(keys.Install(t.Context()))(t)
			servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
		})
	}
}

func TestLooseForeignKeysCleanup_TheQueueOfAnotherApplicationIsNoneOfOurs(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("")))
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c VALUES (1), (2);
		CREATE SCHEMA other; CREATE TABLE other.loose_foreign_keys_deleted_records (partition bigint) PARTITION BY LIST (partition)`)
	e.Deleted("main", "p", 1, 1)
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=1 deleted_rows=1")
}
