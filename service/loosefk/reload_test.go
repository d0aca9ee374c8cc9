package loosefk_test

import (
	"os"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestReload_ARunKeepsItsDefinitionsAndAMistakeThoseOfTheServer(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint); CREATE TABLE d (p_id bigint); INSERT INTO c VALUES (1), (2); INSERT INTO d TABLE c;
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN OLD; END';
		CREATE TRIGGER wait BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION wait(); SELECT pg_advisory_lock(1)`)
	const ofC = "c: [{table: p, column: p_id, on_delete: async_delete}]\n"
	file := servicetest.Save(t, ofC+strings.Replace(ofC, "c:", "d:", 1))
	s := e.Service("", servicetest.With(func(c *loosefk.Config) { c.DefinitionsFile = file }))
	e.Deleted("main", "p", 1, 1)
	assert.Must(s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Async: true}))(t)
	e.Eventually("main", `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, "1")
	assert.NoError(t, os.WriteFile(file, []byte(ofC), 0o600))
	assert.Equal(t, assert.Must(s.ReloadDefinitions())(t), 1)
	e.Exec("main", `SELECT pg_advisory_unlock(1)`)
	e.Eventually("main", `SELECT counts->>'deleted_rows' FROM maintenance.runs WHERE state = 'succeeded'`, "2")

	assert.NoError(t, os.WriteFile(file, []byte("c: 1"), 0o600))
	_, err := s.ReloadDefinitions()
	assert.Contains(t, err.Error(), file+": c")
	const refused = ", the previous definitions stay in use: "
	servicetest.WantDetail(t, servicetest.Status(t, s), "the definitions file was refused at the reload of 20", refused+file+": c")
	e.Deleted("main", "p", 2, 2)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	assert.NoError(t, os.WriteFile(file, []byte(ofC), 0o600))
	assert.Must(s.ReloadDefinitions())(t)
	assert.Lacks(t, servicetest.Status(t, s).ConditionDetail, refused)
}
