package loosefk_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestStatus_NamesParentsWhoseDeletionsAreNotRecorded(t *testing.T) {
	const definitions = "c: [{table: p, column: p_id, on_delete: async_delete}, {table: q, column: q_id, on_delete: async_delete}]\n" +
		"nowhere: [{table: r, column: r_id, on_delete: async_delete}]\n"
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE q (id bigint PRIMARY KEY); CREATE TABLE r (id bigint PRIMARY KEY);
		CREATE TABLE c (p_id bigint, q_id bigint); CREATE INDEX ON c (p_id); CREATE INDEX ON c (q_id)`)
	e.Install("p", "q")
	var log servicetest.LogBook
	s := e.Service(definitions, log.Keep)
	want := func(s *service.Service, untracked float64, remark string) {
		t.Helper()
		st := servicetest.Status(t, s)
		assert.Equal(t, st.Condition, service.ConditionIdle)
		assert.Equal(t, st.Backlog.Untracked, int(untracked))
		assert.Contains(t, st.ConditionDetail, remark)
		assert.Equal(t, m.Values("maintenance.untracked.parents", "database=main")[0], untracked)
	}
	servicetest.Status(t, s)
	servicetest.RunBatch(t, s, "main")
	want(s, 0, "waiting for ")
	// As lint says: r needs no trigger as long as no database has its child.
	e.Exec("main", `ALTER TABLE q DISABLE TRIGGER q_loose_fk_trigger`)
	want(s, 0, "waiting for ")
	servicetest.RunBatch(t, s, "main")
	const remark = "; deletions on main are not recorded for the parents "
	want(s, 1, remark+"q (caretaker lfk lint)")
	assert.Must(e.Keys(definitions).Untrack(t.Context(), "p"))(t)
	e.Exec("main", `DROP TABLE loose_foreign_keys_deleted_records`)
	servicetest.RunBatch(t, s, "main")
	want(s, 2, remark+"p, q (caretaker lfk lint)")
	lines := log.Lines("parents not tracked")
	assert.Equal(t, len(lines), 2)
	assert.Contains(t, lines[1], "level=WARN", `database=main parents="p, q"`)
}

func TestStatus_NamesAParentWhoseRecordedColumnIsGone(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Install("p")
	s := e.Service(servicetest.OneChild)
	e.Exec("main", `ALTER TABLE p RENAME id TO no`)
	servicetest.RunBatch(t, s, "main")
	assert.Contains(t, servicetest.Status(t, s).ConditionDetail, "deletions on main are not recorded for the parents p")
}
