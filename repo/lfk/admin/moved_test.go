package admin_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// moving is a database with two tracked tables that moved to the schema app, and one pending record.
func moving(t *testing.T) (b, app *bench) {
	t.Helper()
	b = installed(t)
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1), (2); CREATE TABLE k (id uuid PRIMARY KEY)`)
	b.track("p", "")
	b.track("k", "")
	b.exec(`DELETE FROM p WHERE id = 1; CREATE SCHEMA app; ALTER TABLE p SET SCHEMA app; ALTER TABLE k SET SCHEMA app`)
	admin := admin.New(servicetest.Open(t, b.with("search_path=app,public")).Database)
	return b, &bench{T: t, Admin: admin, estate: b.estate, url: b.url, sql: b.sql}
}

func TestInstallQueue_FunctionsFollowTheQueueToAnotherSchema(t *testing.T) {
	for name, before := range map[string]string{
		"moved": "", "their names are taken": `CREATE FUNCTION app.insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'`,
		"one is missing": `DROP FUNCTION public.insert_into_loose_foreign_keys_deleted_records_override_table()`,
	} {
		t.Run(name, func(t *testing.T) {
			b, app := moving(t)
			b.exec(before + `; ALTER TABLE loose_foreign_keys_deleted_records SET SCHEMA app; SET search_path = app`)
			found := assert.Must(app.Inspect(t.Context(), nil))(t)
			assert.That(t, len(found.OldFunctions) >= 2, "got %q", found.OldFunctions)
			app.install("managed by caretaker, trigger functions renewed")
			app.install(admin.QueueOurs)
			b.want(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND prosrc LIKE '%"app"."loose%'`, "3")
			b.exec(`DELETE FROM app.p; INSERT INTO app.k VALUES (gen_random_uuid()); DELETE FROM app.k`)
			b.wantRecords("app.k:0", "app.p:2", "public.p:1")
			app.track("p", "")
		})
	}
}

func TestInstallQueue_ReplacesNoQueueInUse(t *testing.T) {
	b, app := moving(t)
	there := app.In("app")
	_, err := there.InstallQueue(t.Context())
	b.wantRefusal(err, "the queue public.loose_foreign_keys_deleted_records (pending records: 1, tables with triggers: k, p): ",
		"put schema public first in search_path")
	b.exec(`DROP TRIGGER p_loose_fk_trigger ON app.p; DROP TRIGGER k_loose_fk_trigger ON app.k`)
	_, err = there.InstallQueue(t.Context())
	b.wantRefusal(err, "tables with triggers: none")
	_, advised, _ := strings.Cut(err.Error(), "to move the queue, run ")
	advised, _, _ = strings.Cut(advised, ", then")
	b.exec("BEGIN; " + advised)
	b.exec("ROLLBACK; DELETE FROM loose_foreign_keys_deleted_records")
	got, err := there.InstallQueue(t.Context())
	assert.That(t, err == nil && got == admin.QueueInstalled, "%q, %v", got, err)
}
