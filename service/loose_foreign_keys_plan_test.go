package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
)

// logBook keeps what a service logs.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// lines are the lines that contain a text.
func (l *logBook) lines(containing string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, containing) {
			found = append(found, line)
		}
	}
	return found
}

func (l *logBook) keep(c *service.Config) {
	c.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// fileLikeGitLabs has 330 definitions of 240 children and 45 parents, one of which has 153; projects and c are there.
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
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("main", `CREATE TABLE child_000 (id bigserial PRIMARY KEY, column_0 bigint, column_1 bigint)`)
	e.exec("ci", `CREATE TABLE child_001 (id bigserial PRIMARY KEY, column_2 bigint)`)
	e.exec("main", `INSERT INTO child_000 (column_0, column_1) VALUES (1, 9), (9, 1), (9, 9)`)
	e.exec("ci", `INSERT INTO child_001 (column_2) VALUES (1), (9)`)
	e.deleted("main", "projects", 1, 1)
	var log logBook
	s := e.service(fileLikeGitLabs(), log.keep)
	r := runBatch(t, s, "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "rescheduled_records=1 deleted_rows=3")
	wantWords(t, r.Reason, "1 records held, ", " child_002, child_003, child_004, child_005, child_006 and ", " more; ")
	e.want("main", `SELECT count(*) FROM child_000`, "1")
	e.want("ci", `SELECT count(*) FROM child_001`, "1")
	runBatch(t, s, "main")
	runBatch(t, s, "ci")
	warnings := log.lines("no configured database has these child tables")
	if len(warnings) != 1 {
		t.Fatalf("%d warnings, want one of all missing children", len(warnings))
	}
	for child := range 240 {
		name := fmt.Sprintf("child_%03d", child)
		if missing := child > 1; strings.Contains(warnings[0], name) != missing {
			t.Errorf("%s in the warning: %t, want %t", name, !missing, missing)
		}
	}
	accepted, err := e.keys(fileLikeGitLabs()).AcceptAbsent(context.Background(), nil, "me")
	if err != nil || len(accepted) != 238 {
		t.Fatalf("%d children accepted, want 238; %v", len(accepted), err)
	}
	e.dueAgain("main")
	r = runBatch(t, s, "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=1")
}

func TestLooseForeignKeysCleanup_WithoutDefinitionsIsNotConfigured(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("")
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "main"})
	if _, is := errors.AsType[*service.NotConfiguredError](err); !is {
		t.Errorf("RunBatch: %v, want a *NotConfiguredError", err)
	}
	states, err := s.Status(context.Background(), cleanupWorker)
	if err != nil || states[0].Condition != service.ConditionNotConfigured {
		t.Errorf("condition %v, error %v, want NOT_CONFIGURED", states, err)
	}
	fire := time.Now().Truncate(time.Minute)
	r, ours, err := s.RunScheduled(context.Background(), cleanupWorker, fire)
	if err != nil || !ours || r.State != "skipped" || !strings.Contains(r.Reason, "WORKER_NOT_CONFIGURED") {
		t.Errorf("tick: %+v, %v, %v, want a skipped run with the reason", r, ours, err)
	}
	e.want("main", `SELECT count(*) FROM maintenance.leases`, "0")
}

func TestLooseForeignKeysCleanup_AnEmptyFileLeavesEverythingAlone(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	e.deleted("main", "p", 1, 3)
	r := runBatch(t, e.service("# nothing yet\n"), "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "")
	e.want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "3")
}

func TestLooseForeignKeysCleanup_RecordsOfParentsWithoutDefinitionsStay(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	e.deleted("main", "p", 1, 2)
	e.deleted("main", "unknown", 1, 3)
	e.deleted("main", "orphaned", 1, 4)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		VALUES ('other.p', 1), ('p', 1), ('publicp', 1), ('PUBLIC.p', 1)`)
	before := e.value("main", `SELECT string_agg(q::text, ',' ORDER BY id) FROM loose_foreign_keys_deleted_records q WHERE fully_qualified_table_name <> 'public.p'`)
	s := e.service(`
c:
  - {table: p, column: p_id, on_delete: async_delete}
absent:
  - {table: orphaned, column: p_id, on_delete: async_delete}
`)
	e.exec("main", `INSERT INTO maintenance.absent_children (child, accepted_by) VALUES ('absent', 'me')`)
	r := runBatch(t, s, "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=2")
	if r.OverLimit {
		t.Error("over_limit, though nothing that has definitions is left")
	}
	e.want("main", `SELECT string_agg(q::text, ',' ORDER BY id) FROM loose_foreign_keys_deleted_records q`, before)
	states, err := s.Status(context.Background(), cleanupWorker)
	if err != nil {
		t.Fatal(err)
	}
	if b := states[0].Backlog; b.Pending != 11 || b.Due != 11 {
		t.Errorf("backlog %+v, want 11 pending and due", b)
	}
	for _, parent := range []string{"public.unknown", "public.orphaned", "other.p"} {
		if !strings.Contains(states[0].ConditionDetail, parent) {
			t.Errorf("condition_detail %q does not name %s", states[0].ConditionDetail, parent)
		}
	}
}

func TestLooseForeignKeysCleanup_OnlyWritableTablesAreHomes(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci", "sec")
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
		INSERT INTO c (p_id) VALUES (1);
		CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'read-only'; END $$;
		CREATE TRIGGER gitlab_schema_write_trigger_for_c BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON c
			FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	e.exec("sec", `CREATE TABLE real_c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO real_c (p_id) VALUES (1);
		CREATE VIEW c AS SELECT * FROM real_c`)
	e.exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1), (2)`)
	e.deleted("main", "p", 1, 1)
	const definitions = "c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"
	r := runBatch(t, e.service(definitions), "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=1 deleted_rows=1")
	e.want("ci", `SELECT p_id FROM c`, "2")
	e.want("main", `SELECT count(*) FROM c`, "1")
	e.want("sec", `SELECT count(*) FROM real_c`, "1")

	// The trigger switched off, the table is one like any other; homes are looked for at the start of each run.
	e.exec("main", `ALTER TABLE c DISABLE TRIGGER gitlab_schema_write_trigger_for_c`)
	e.deleted("main", "p", 1, 1)
	r = runBatch(t, e.service(definitions), "main")
	wantCounts(t, r, "processed_records=1 deleted_rows=1")
	e.want("main", `SELECT count(*) FROM c`, "0")
}

func TestLooseForeignKeysCleanup_NamesAreLiteral(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	e.exec("main", `CREATE TABLE "Weird ""Name"".$1 {child}" ("select" serial, "Parent; DROP TABLE users" bigint, "user" text, "{column}" text)`)
	e.exec("main", `INSERT INTO "Weird ""Name"".$1 {child}" VALUES
		(1, 1, 'it''s', NULL), (2, 1, 'its', NULL), (3, 2, 'it''s', NULL), (4, 1, 'it''s', 'don''t')`)
	e.exec("main", `CREATE TABLE "weird ""name"".$1 {child}" ("Parent; DROP TABLE users" bigint)`)
	e.exec("main", `INSERT INTO "weird ""name"".$1 {child}" VALUES (1)`)
	e.deleted("main", `Order's "x"`, 1, 1)
	e.deleted("main", `order's "x"`, 2, 2)
	r := runBatch(t, e.service(`
'Weird "Name".$1 {child}':
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
`), "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=1 updated_rows=3")
	e.want("main", `SELECT string_agg(c::text, ' ' ORDER BY "select") FROM "Weird ""Name"".$1 {child}" c`,
		`(1,1,it's,"don't; $1 {child}") (2,,its,) (3,2,it's,) (4,1,it's,"don't; $1 {child}")`)
	e.want("main", `SELECT count(*) FROM "weird ""name"".$1 {child}"`, "1")
	e.want("main", `SELECT fully_qualified_table_name FROM loose_foreign_keys_deleted_records`, `public.order's "x"`)
}
