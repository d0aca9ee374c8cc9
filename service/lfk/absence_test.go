package lfk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

const oneAbsent = `
absent:
  - {table: p, column: p_id, on_delete: async_delete}
c:
  - {table: p, column: p_id, on_delete: async_delete}
`

// newAbsence has children of a deleted parent, one table of which is missing in main and ci.
func newAbsence(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	return e
}

// dueAgain ends the time for which records have been postponed.
func dueAgain(e *servicetest.Estate, database string) {
	e.T.Helper()
	e.Exec(database, `UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE consume_after > now()`)
}

// accept accepts children as absent, and fails the test unless that works.
func accept(e *servicetest.Estate, definitions string, children ...string) []admin.AcceptedChild {
	e.T.Helper()
	accepted := assert.Must(e.Keys(definitions).AcceptAbsent(context.Background(), children, "me@here"))(e.T)
	return accepted
}

const postponedBy = `SELECT ` + postponedMinutes + ` || ' min, attempts ' || cleanup_attempts
	FROM loose_foreign_keys_deleted_records`

func TestAbsentChild_HoldsTheRecordUntilItIsAccepted(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	var log servicetest.Buffer
	s, main := e.Service(oneAbsent, log.Keep), e.State("main", "c")
	dry := servicetest.DryRun(t, s)
	e.WantSame("main", main, "c")
	for _, want := range []string{"1 min", "2 min", "4 min"} {
		r := servicetest.RunBatch(t, s, "main")
		for _, r := range []run.Run{dry, r} {
			servicetest.WantState(t, r, "succeeded")
			assert.That(t, !r.OverLimit && r.Error == "" && r.Counts["processed_records"] == 0 &&
				r.Counts["rescheduled_records"] == 1 && r.Reason == dry.Reason, "%+v", r)
		}
		assert.Contains(t, r.Reason, "1 record held, because no configured database has the child tables "+
			"absent: ", "caretaker lfk accept-absent absent")
		e.Want("main", postponedBy, want+", attempts 0")
		dueAgain(e, "main")
	}
	e.Want("main", `SELECT p_id FROM c`, "2")
	e.Want("main", `SELECT failures FROM maintenance.record_failures`, "0")
	// The status reports it once, also that of a server that has not run.
	for _, server := range []*service.Service{s, e.Service(oneAbsent)} {
		detail := servicetest.Status(t, server).ConditionDetail
		assert.Contains(t, detail, "records are held, because no configured database has the child tables "+
			"absent: ", "caretaker lfk accept-absent absent")
		assert.That(t, strings.Count(detail, "no configured database") == 1, "detail %q, want that it says once why records are held", detail)
	}
	if lines := log.Lines("child tables not found"); len(lines) != 1 || !strings.Contains(lines[0], "children=absent") ||
		!strings.Contains(lines[0], "caretaker lfk accept-absent") || !strings.Contains(lines[0], "level=WARN") {
		t.Errorf("warnings %q, want one that names the child and the command", lines)
	}

	accept(e, oneAbsent, "absent")
	if detail := servicetest.Status(t, e.Service(oneAbsent)).ConditionDetail; strings.Contains(detail, "no configured database") {
		t.Errorf("detail %q, want no word on an accepted child", detail)
	}
	r := wantRun(t, s, "processed_records=1")
	if detail := servicetest.Status(t, s).ConditionDetail; r.Reason != "" || strings.Contains(detail, "absent") {
		t.Errorf("reason %q, detail %q, want no word on an accepted child", r.Reason, detail)
	}
	// A leftover of a split is no table that comes back.
	e.Exec("main", `CREATE TABLE absent (p_id bigint); INSERT INTO absent VALUES (2);
		CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'read-only'; END $$;
		CREATE TRIGGER gitlab_schema_write_trigger_for_absent BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON absent
			FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	e.Deleted("main", "p", 2, 2)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT count(*) FROM maintenance.absent_children`, "1")
}

func TestAbsentChild_AcceptanceEndsWhenTheTableIsFound(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	accept(e, oneAbsent, "absent")
	s := e.Service(oneAbsent)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Exec("ci", `CREATE TABLE absent (p_id bigint); INSERT INTO absent VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	servicetest.WantCounts(t, servicetest.DryRun(t, s), "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT child FROM maintenance.absent_children`, "absent")
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Want("ci", `SELECT p_id FROM absent`, "2")
	e.Want("main", `SELECT count(*) FROM maintenance.absent_children`, "0")

	e.Exec("ci", `DROP TABLE absent`)
	e.Deleted("main", "p", 2, 2)
	wantRun(t, s, "rescheduled_records=1 deleted_rows=1")
}

func TestAbsentChild_TypingErrorGetsASuggestion(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE orders (p_id bigint)`)
	s := e.Service("ordrs: [{table: p, column: p_id, on_delete: async_delete}]\n")
	const text = "no configured database has the child tables ordrs (did you mean orders?): configure the database"
	for range 2 {
		assert.Contains(t, servicetest.RunBatch(t, s, "main").Reason, text)
		assert.Contains(t, servicetest.Status(t, s).ConditionDetail, text)
		dueAgain(e, "main")
	}
}

func TestAbsentChild_HeldRecordsEndTheRunAndStarveNobody(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (q_id bigint); INSERT INTO d SELECT generate_series(1, 50)`)
	e.Deleted("main", "p", 2, 700)
	e.Deleted("main", "only", 1, 700)
	e.Deleted("main", "q", 1, 50)
	s := e.Service(oneAbsent+`
d: [{table: q, column: q_id, on_delete: async_delete}]
gone: [{table: only, column: o_id, on_delete: async_nullify}]
`, servicetest.Batches(10, 0))
	r := wantRun(t, s, "processed_records=50 deleted_rows=52 rescheduled_records=1400")
	assert.Contains(t, r.Reason, "1,400 records held, because no configured database has the child "+
		"tables absent, gone: ")
	assert.That(t, !r.OverLimit, "over_limit, though nothing is left but what is held")
	wantRun(t, s, "")
}

func TestAbsentChild_LimitsChargeNoHeldRecord(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 9)`)
	s := e.Service(oneAbsent, servicetest.With(func(c *lfk.Config) { c.MaxDeletes = 4 }))
	for _, left := range []string{"7", "3"} {
		r := wantRun(t, s, "deleted_rows=4 rescheduled_records=1")
		assert.Contains(t, r.Reason, "limit reached: max_deletes; 1 record held, ")
		assert.That(t, r.OverLimit, "not over_limit, though rows are left")
		e.Want("main", `SELECT count(*) FROM c`, left)
		e.Want("main", `SELECT cleanup_attempts FROM loose_foreign_keys_deleted_records`, "0")
		dueAgain(e, "main")
	}
}

func TestAbsentChild_OtherFatesComeFirst(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("main", `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER no BEFORE DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 1) EXECUTE FUNCTION no()`)
	e.Deleted("main", "p", 3, 3)
	r := servicetest.RunBatch(t, e.Service(oneAbsent), "main")
	servicetest.WantState(t, r, "failed")
	assert.Contains(t, r.Error, "c.p_id -> p on main: P0001")
	assert.Contains(t, r.Reason, "1 record held, ")
	e.Want("main", `SELECT string_agg(failures || ' ' || last_definition, ', ' ORDER BY record_id) FROM maintenance.record_failures`,
		"1 c.p_id -> p, 0 absent.p_id -> p")
}

func TestAbsentChild_IsUnknownWhileADatabaseIsSilent(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	accept(e, oneAbsent)
	e.AddDown()
	r := servicetest.RunBatch(t, e.Service(oneAbsent), "main")
	servicetest.WantState(t, r, "failed")
	assert.Contains(t, r.Error, "absent.p_id -> p on down: unreachable, 1 record")
	servicetest.WantCounts(t, r, "deleted_rows=1 rescheduled_records=1")
	_, err := e.Keys(oneAbsent).AcceptAbsent(context.Background(), nil, "me")
	assert.That(t, errors.Is(err, dberr.ErrUnreachable), "accepted while a database does not answer: %v", err)
}

// A table of this name in another database does not show that the rows of this one need no
// cleaning.
func TestAbsentChild_ThatADatabaseNoLongerHasHoldsTheRecords(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	for name, c := range map[string]struct {
		lose, restore string
		kept          bool // nothing is held
	}{
		"renamed":            {lose: `ALTER TABLE c RENAME TO c2`, restore: `ALTER TABLE c2 RENAME TO c`},
		"in another schema":  {lose: `CREATE SCHEMA z; ALTER TABLE c SET SCHEMA z`, restore: `ALTER TABLE z.c SET SCHEMA public`},
		"dropped":            {lose: `DROP TABLE c`},
		"replaced by a view": {lose: `ALTER TABLE c RENAME TO c2; CREATE VIEW c AS TABLE c2`},
		"left behind by GitLab": {lose: `CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'read-only'; END $$;
			CREATE TRIGGER no BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON c FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1), (2)`)
			e.Deleted("main", "p", 1, 1)
			e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c VALUES (1), (2)`)
			var log servicetest.Buffer
			s := e.Service(servicetest.OneChild, log.Keep)
			wantRun(t, s, "processed_records=1 deleted_rows=2")
			wantRun(t, e.Service("d: [{table: q, column: q_id, on_delete: async_nullify}]"), "") // with another file
			e.Exec("ci", c.lose)
			e.Deleted("main", "p", 2, 2)
			if c.kept {
				wantRun(t, s, "processed_records=1 deleted_rows=1")
				return
			}
			const reason = "1 record held, because ci no longer has the child table c: "
			dry := servicetest.DryRun(t, s)
			assert.Contains(t, dry.Reason, reason)
			servicetest.WantCounts(t, dry, "rescheduled_records=1 deleted_rows=1")
			assert.Contains(t, wantRun(t, s, "rescheduled_records=1 deleted_rows=1").Reason, reason)
			dueAgain(e, "main")
			s = e.Service(servicetest.OneChild, log.Keep) // another server
			assert.Contains(t, wantRun(t, s, "rescheduled_records=1").Reason, reason)
			assert.Contains(t, servicetest.Status(t, s).ConditionDetail, "records are held, because ci no longer "+
				"has the child table c: ")
			e.Exec("ci", `CREATE SCHEMA caretaker`) // the name of the role: ci does not show its tables
			dueAgain(e, "main")
			assert.Contains(t, servicetest.RunBatch(t, s, "main").Error, "c.p_id -> p on ci")
			e.Exec("ci", `DROP SCHEMA caretaker`)
			dueAgain(e, "main")
			assert.Contains(t, wantRun(t, s, "rescheduled_records=1").Reason, reason)
			assert.Equal(t, len(log.Lines("child tables no longer found, records held")), 2)
			lint := assert.Must(e.Keys(servicetest.OneChild).Lint(t.Context()))(t)
			assert.Contains(t, fmt.Sprint(lint.Findings), "child_missing", "ci no longer has the child table c: ", "Records of p are held")
			dueAgain(e, "main")
			if c.restore != "" {
				e.Exec("ci", c.restore)
				wantRun(t, s, "processed_records=1 deleted_rows=1")
				return
			}
			done := accept(e, servicetest.OneChild)
			assert.That(t, len(done) == 1 && fmt.Sprint(done[0].Databases) == "[ci]", "accepted %+v", done)
			assert.That(t, !strings.Contains(servicetest.Status(t, s).ConditionDetail, "held"), "status after the acceptance")
			wantRun(t, s, "processed_records=1")
			keys := e.Keys(servicetest.OneChild)
			listed := assert.Must(keys.AbsentChildren(t.Context()))(t)
			assert.That(t, len(listed) == 1 && listed[0].String() == "c on ci", "listed %+v", listed)
			// Without the acceptance the table is gone again. It ends when the table is back, too.
			assert.NoError(t, keys.RevokeAbsent(t.Context(), []string{"c"}))
			e.Deleted("main", "p", 2, 2)
			assert.Contains(t, wantRun(t, s, "rescheduled_records=1").Reason, reason)
			accept(e, servicetest.OneChild)
			e.Exec("ci", `DROP VIEW IF EXISTS c; CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (2)`)
			dueAgain(e, "main")
			wantRun(t, s, "processed_records=1 deleted_rows=1")
			assert.Equal(t, len(assert.Must(keys.AbsentChildren(t.Context()))(t)), 0)
		})
	}
}

func TestAbsentChild_ThatIsAViewIsNamedAsOne(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("ci", `CREATE VIEW v AS SELECT 1 AS p_id`)
	var log servicetest.Buffer
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]\nv: [{table: p, column: p_id, on_delete: async_delete}]", log.Keep)
	const text = "held, because v is a view in database ci: use its underlying table in the definition"
	for _, r := range []run.Run{servicetest.DryRun(t, s), wantRun(t, s, "deleted_rows=1 rescheduled_records=1")} {
		assert.Equal(t, r.Reason, "1 record "+text)
	}
	assert.Contains(t, servicetest.Status(t, s).ConditionDetail, text)
	assert.Contains(t, strings.Join(log.Lines("child tables not found"), ""), "children=v")
}

func TestAcceptAbsent_AcceptsAllOrNothing(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE VIEW v AS SELECT p_id FROM c`)
	const definitions = oneAbsent + "v: [{table: p, column: p_id, on_delete: async_delete}]\n" + "gone: [{table: p, column: p_id, on_delete: async_delete}, {table: p, column: q_id, on_delete: async_delete}]"
	keys := e.Keys(definitions)
	for _, mistake := range []struct{ child, words string }{
		{"c", "c cannot be accepted as absent, because the table exists in main, ci"},
		{"v", "v is a view in database ci: use its underlying table"},
		{"nobodys", "no definition has the child table nobodys: "},
	} {
		_, err := keys.AcceptAbsent(context.Background(), []string{"absent", mistake.child}, "me")
		assert.That(t, err != nil && strings.Contains(err.Error(), mistake.words), "%s: %v, want %q", mistake.child, err, mistake.words)
		e.Want("main", `SELECT count(*) FROM maintenance.absent_children`, "0")
	}
	if got := accept(e, definitions, "gone"); len(got) != 1 || strings.Join(got[0].Definitions, ", ") != "gone.p_id -> p, gone.q_id -> p" || got[0].Before {
		t.Errorf("accepted %+v", got)
	}
	if got := accept(e, definitions); len(got) != 1 || got[0].Child != "absent" {
		t.Errorf("of all, %+v accepted, want the one that was left", got)
	}
	if got := accept(e, definitions, "gone", "gone"); len(got) != 1 || !got[0].Before {
		t.Errorf("accepted again %+v", got)
	}
	e.Want("main", `SELECT string_agg(child || ' ' || accepted_by, ', ' ORDER BY child) FROM maintenance.absent_children`, "absent me@here, gone me@here")

	if err := keys.RevokeAbsent(context.Background(), []string{"gone", "c"}); err == nil || !strings.Contains(err.Error(), "c is not accepted as absent: ") {
		t.Errorf("revoked what is not accepted: %v", err)
	}
	assert.NoError(t, keys.RevokeAbsent(context.Background(), []string{"gone"}))
	left := assert.Must(keys.AbsentChildren(context.Background()))(t)
	assert.That(t, len(left) == 1 && left[0].Child == "absent", "left %+v", left)
}

func TestAcceptAbsent_WhatARoleMayNotSeeIsNotAbsent(t *testing.T) {
	e := newAbsence(servicetest.Parallel(t))
	e.Exec("ci", `CREATE TABLE absent (p_id bigint)`)
	e.Exec("ci", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = nowhere', current_database()); END $$`)
	_, err := e.Keys(oneAbsent).AcceptAbsent(context.Background(), nil, "me")
	assert.That(t, err != nil && strings.Contains(err.Error(), "database ci has no application schema: no schema in search_path (nowhere) exists"),
		"got %v", err)
	e.Want("main", `SELECT count(*) FROM maintenance.absent_children`, "0")
}

func TestLint_AsksForNoTriggerWhereNothingIsToBeCleaned(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE q (id bigint PRIMARY KEY);
		CREATE TABLE c (q_id bigint); CREATE INDEX ON c (q_id)`)
	e.Install("q")
	const definitions = `
absent: [{table: p, column: p_id, on_delete: async_delete}, {table: q, column: q_id, on_delete: async_delete}]
c: [{table: q, column: q_id, on_delete: async_delete}]
`
	keys := e.Keys(definitions)
	servicetest.WantFindings(t, keys, "error child_missing  absent.p_id -> p", "error child_missing  absent.q_id -> q")
	accept(e, definitions, "absent")
	servicetest.WantFindings(t, keys, "warning child_absent  absent.p_id -> p", "warning child_absent  absent.q_id -> q")
	keys.Only = "main"
	servicetest.WantFindings(t, keys)

	e.Exec("main", `DROP TABLE c`)
	accept(e, definitions, "c")
	keys.Only = ""
	e.Exec("main", `INSERT INTO q VALUES (1); DELETE FROM q`)
	servicetest.WantFindings(t, keys, "warning child_absent  absent.p_id -> p", "warning child_absent  absent.q_id -> q", "warning child_absent  c.q_id -> q",
		"error pending_without_definition main public.q", "warning trigger_without_definition main q")

	e.Exec("ci", `CREATE TABLE absent (p_id bigint, q_id bigint); CREATE INDEX ON absent (p_id); CREATE INDEX ON absent (q_id)`)
	servicetest.WantFindings(t, keys, "error trigger_missing main public.p", "warning child_absent  c.q_id -> q")
}

func TestStatus_NamesParentsWhoseDeletionsAreNotRecorded(t *testing.T) {
	const definitions = "c: [{table: p, column: p_id, on_delete: async_delete}, {table: q, column: q_id, on_delete: async_delete}]\n" +
		"nowhere: [{table: r, column: r_id, on_delete: async_delete}]\n"
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.IntegerKeys(), "main", "ci")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE q (id bigint PRIMARY KEY); CREATE TABLE r (id bigint PRIMARY KEY);
		CREATE TABLE c (p_id bigint, q_id bigint); CREATE INDEX ON c (p_id); CREATE INDEX ON c (q_id)`)
	e.Install("p", "q")
	var log servicetest.Buffer
	s := e.Service(definitions, log.Keep)
	want := func(s *service.Service, untracked float64, remark string) {
		t.Helper()
		st := servicetest.Status(t, s)
		assert.Equal(t, st.Condition, status.ConditionIdle)
		assert.Equal(t, st.Backlog.Untracked, int(untracked))
		assert.Contains(t, st.ConditionDetail, remark)
		assert.Equal(t, m.Values("maintenance.untracked.parents", "database=main")[0], untracked)
	}
	servicetest.Status(t, s)
	servicetest.RunBatch(t, s, "main")
	want(s, 0, "waiting for ")
	// As lint reports: r needs no trigger as long as no database has its child.
	e.Exec("main", `ALTER TABLE q DISABLE TRIGGER q_loose_fk_trigger`)
	want(s, 0, "waiting for ")
	servicetest.RunBatch(t, s, "main")
	const remark = "; on main, deletions from the parent tables "
	want(s, 1, remark+"q are not recorded (to see why, run `caretaker lfk lint`)")
	assert.Must(e.Keys(definitions).Untrack(t.Context(), "p"))(t)
	e.Exec("main", `DROP TABLE loose_foreign_keys_deleted_records`)
	servicetest.RunBatch(t, s, "main")
	want(s, 2, remark+"p, q are not recorded (to see why, run `caretaker lfk lint`)")
	lines := log.Lines("parents not tracked")
	assert.Equal(t, len(lines), 2)
	assert.Contains(t, lines[1], "level=WARN", `database=main parents="p, q"`)
}

func TestStatus_NamesAParentWhoseRecordedColumnIsGone(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.IntegerKeys(), "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Install("p")
	s := e.Service(servicetest.OneChild)
	e.Exec("main", `ALTER TABLE p RENAME id TO no`)
	servicetest.RunBatch(t, s, "main")
	assert.Contains(t, servicetest.Status(t, s).ConditionDetail, "on main, deletions from the parent tables p "+
		"are not recorded")
}
