package group_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDestroyGroup_Trees(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		treeThatIsItsOwnAncestorFailsAndIsReported, cycleThatComesLaterFailsToo,
		tablesOfAProjectMayReferToEachOtherInAnyOrder, whatLockedRowsForbidIsToldAsLocked,
		lockedRowsFailTheAttemptAndEverythingElseOfTheirTableGoes,
		botsOfARemovalWhoseUserIsGoneHaveNoActor, manyMembersGoPageByPage, deepAndWideTreeGoes,
		rowsThatNoKeyTakesAlongAreNamed, whatIsPutBelowMeanwhileGoesToo,
		doesWhatTriggersAndKeysWouldHaveDone,
	)
}

func treeThatIsItsOwnAncestorFailsAndIsReported(g *servicetest.Groups) {
	plant(g, "10 owner=1 mark=1@15 details=1@15", "11<10")
	g.Project(1, 11, "p")
	g.Exec("main", `UPDATE namespaces SET parent_id = 11, state = 2 WHERE id = 10`)
	g.Run("scheduled_jobs=1")
	g.Attempt("retryable failed")
	g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`,
		"group 10 is its own ancestor: correct parent_id in namespaces")
	g.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, "group 10 is its own ancestor: correct parent_id in namespaces")
	g.WantRows(map[string]int{"projects": 1, "maintenance.group_removals": 0})
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	g.Exec("main", `UPDATE namespaces SET parent_id = NULL WHERE id = 10`)
	g.Attempt("completed succeeded")
}

func cycleThatComesLaterFailsToo(g *servicetest.Groups) {
	plant(g, "10 owner=1 mark=1@15 begun=1", "11<10")
	g.Exec("main", `UPDATE namespaces SET parent_id = 11 WHERE id = 10`)
	g.Run("scheduled_jobs=1")
	g.Attempt("retryable failed")
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	g.WantRows(map[string]int{"namespaces": 2})
}

func tablesOfAProjectMayReferToEachOtherInAnyOrder(g *servicetest.Groups) {
	plant(g, "20")
	g.Project(2, 20, "other")
	for name, tables := range map[string]string{
		"from the last": `CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE z (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, a_id bigint REFERENCES a)`,
		"from the first": `CREATE TABLE z (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, z_id bigint REFERENCES z)`,
		"deferred": `CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE z (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, a_id bigint REFERENCES a DEFERRABLE INITIALLY DEFERRED)`,
		"in a chain": `CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE b (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, a_id bigint REFERENCES a);
			CREATE TABLE z (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, b_id bigint REFERENCES b)`,
		"below others": `CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE below_a (id bigint PRIMARY KEY, a_id bigint REFERENCES a ON DELETE CASCADE);
			CREATE TABLE y (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
			CREATE TABLE z (id bigint PRIMARY KEY, y_id bigint REFERENCES y ON DELETE CASCADE, below_a_id bigint REFERENCES below_a)`,
	} {
		plant(g, "10 owner=1 mark=1@15")
		g.Project(1, 10, "p")
		g.Exec("main", `DROP TABLE IF EXISTS a, b, y, z, below_a; DELETE FROM maintenance.river_job; `+tables)
		for table := range strings.FieldsSeq(g.Value("main", `SELECT string_agg(relname, ' ' ORDER BY oid) FROM pg_class WHERE relname IN ('a', 'b', 'y', 'z', 'below_a')`)) {
			columns := g.Value("main", `SELECT count(*) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0`, table)
			g.Exec("main", `INSERT INTO `+table+` SELECT i, 1 + i % 2`+map[string]string{"2": "", "3": ", i"}[columns]+` FROM generate_series(1, 30) i`)
		}
		g.Run("scheduled_jobs=1")
		g.Attempt("completed succeeded")
		g.Want("main", `SELECT string_agg(id::text, ' ') FROM projects`, "2")
		assert.Equal(g.T, g.Value("main", `SELECT count(*) FROM z`), "15", name, "rows left")
	}
}

func whatLockedRowsForbidIsToldAsLocked(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Exec("main", `CREATE TABLE a (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE);
		CREATE TABLE z (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, a_id bigint REFERENCES a);
		INSERT INTO a SELECT i, 1 FROM generate_series(1, 30) i; INSERT INTO z SELECT i, 1, i FROM generate_series(1, 30) i`)
	release := g.Hold(`SELECT FROM z WHERE id = 7 FOR UPDATE`)
	defer release()
	_, err := workJob(g, "never")
	servicetest.WantError(g.T, err, "locked by another transaction")
	g.WantRows(map[string]int{"z": 1, "a": 30})
	release()
	r := assert.Must(workJob(g, "never"))(g.T)
	assert.That(g.T, r.Outcome == "succeeded", "%+v", r)
	g.WantRows(map[string]int{"a": 0, "z": 0})
}

func lockedRowsFailTheAttemptAndEverythingElseOfTheirTableGoes(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Content(1)
	g.Exec("main", `INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id) SELECT 'n', 'Issue', 1, 1, 1 FROM generate_series(1, 50)`)
	release := g.Hold(`SELECT FROM notes WHERE note = 'n' ORDER BY id LIMIT 1 FOR UPDATE`)
	defer release()
	r, err := workJob(g, "never")
	servicetest.WantError(g.T, err, "locked by another transaction")
	assert.That(g.T, r.Outcome == "", "%+v", r)
	g.WantRows(map[string]int{"projects": 1})
	release()
	if r, err := workJob(g, "never"); err != nil || r.Outcome != "succeeded" {
		g.T.Errorf("%+v, %v", r, err)
	}
	g.WantRows(map[string]int{"namespaces": 0, "notes": 0})
}

func doesWhatTriggersAndKeysWouldHaveDone(g *servicetest.Groups) {
	g.Exec("main", `DROP TRIGGER projects_delete_namespace ON projects`)
	g.Exec("main", `DO $$ DECLARE k record; BEGIN
		FOR k IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'f' AND confrelid IN ('namespaces'::regclass, 'projects'::regclass)
			AND conrelid IN ('namespaces'::regclass, 'projects'::regclass, 'namespace_details'::regclass, 'group_deletion_schedules'::regclass, 'routes'::regclass, 'members'::regclass)
		LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', k.t, k.conname); END LOOP; END $$`)
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Project(2, 10, "without namespace")
	g.Exec("main", `DELETE FROM namespaces WHERE id = 10002`)
	g.Project(3, 10, "in the namespace of a group")
	g.Exec("main", `DELETE FROM namespaces WHERE id = 10003`)
	g.Group(20, 0, "bystander")
	g.Exec("main", `UPDATE projects SET project_namespace_id = 20 WHERE id = 3`)
	g.Exec("main", `DELETE FROM namespace_details WHERE namespace_id > 10000`)
	g.Run("scheduled_jobs=1")
	g.Attempt("completed succeeded")
	g.Want("main", `SELECT string_agg(id::text, ' ') FROM namespaces`, "20")
	g.Want("main", `SELECT string_agg(source_type || source_id, ' ') FROM routes`, "Namespace20")
	g.WantRows(map[string]int{"projects": 0, "members": 0, "namespace_details": 1, "group_deletion_schedules": 0})
}

func botsOfARemovalWhoseUserIsGoneHaveNoActor(g *servicetest.Groups) {
	g.User(2, `user_type = 6`)
	for _, user := range []string{"NULL", "777"} {
		plant(g, "10 begun="+user)
		g.Member(10, 2, 30)
		g.Run("scheduled_jobs=1")
		g.Attempt("completed succeeded")
		g.WantBots("2 by ")
		g.Want("main", `SELECT args -> 'deleted_by_id' FROM maintenance.river_job WHERE kind = 'delete_user'`, "null")
		g.Exec("main", `DELETE FROM maintenance.river_job`)
	}
}

func manyMembersGoPageByPage(g *servicetest.Groups) {
	g.Exec("main", `INSERT INTO users (id, username, email, projects_limit, organization_id, state, user_type)
		SELECT i, 'n' || i, 'n' || i, 0, 1, 'active', CASE WHEN i % 2 = 0 THEN 6 ELSE 0 END FROM generate_series(1001, 2300) i`)
	g.Owned(10, 15)
	g.Exec("main", `INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id)
		SELECT 'Namespace', 10, 'GroupMember', id, 30, 10 FROM users WHERE id > 1000`)
	g.Run("scheduled_jobs=1")
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"members": 0, "users": 1301})
	g.Want("main", `SELECT count(*) || ' ' || count(DISTINCT args ->> 'user_id') FROM maintenance.river_job WHERE kind = 'delete_user'`, "650 650")
	g.WantLog(1, "job finished", "bots=650")
}

func deepAndWideTreeGoes(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id)
		SELECT i, 'n' || i, 'n' || i, 'Group', CASE WHEN i = 1000 THEN 10 WHEN i < 1060 THEN i - 1 ELSE 1000 + i % 60 END, 1 FROM generate_series(1000, 1150) i`)
	g.Project(1, 1059, "deepest")
	g.Run("scheduled_jobs=1")
	g.Attempts("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "namespace_details": 0})
	g.WantLog(1, "job finished", "groups=152", "projects=1")
}

func whatIsPutBelowMeanwhileGoesToo(g *servicetest.Groups) {
	for _, constraint := range []string{"", `ALTER TABLE namespaces DROP CONSTRAINT namespaces_parent_id_fkey`} {
		g.Exec("main", constraint)
		plant(g, "10 owner=1 mark=1@15", "11<10")
		g.Project(1, 11, "p")
		g.Exec("main", `CREATE OR REPLACE FUNCTION put_below() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (12, 'late', 'late', 'Group', 11, 1), (10002, 'q', 'q', 'Project', 12, 1);
		INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) VALUES (2, 'q', 'q', 12, 10002, 1);
		RETURN NULL; END $$`)
		g.Exec("main", `CREATE OR REPLACE TRIGGER put_below AFTER DELETE ON projects FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION put_below()`)
		g.Run("scheduled_jobs=1")
		g.Attempt("completed succeeded")
		g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "maintenance.group_removals": 0})
	}
}

func rowsThatNoKeyTakesAlongAreNamed(g *servicetest.Groups) {
	for _, c := range []struct{ table, gone, reference string }{
		{`CREATE TABLE ledgers (id bigserial PRIMARY KEY, project_id bigint REFERENCES projects); CREATE INDEX ON ledgers (project_id);
			INSERT INTO ledgers (project_id) VALUES (1)`, `DROP TABLE ledgers`, "ledgers.project_id"},
		{`CREATE TABLE ledgers (id bigserial PRIMARY KEY, group_id bigint REFERENCES namespaces ON DELETE RESTRICT); CREATE INDEX ON ledgers (group_id);
			INSERT INTO ledgers (group_id) VALUES (10)`, `DROP TABLE ledgers`, "ledgers.group_id"},
		{
			`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (99, 'x', 'x', 'Project', 10, 1)`,
			`DELETE FROM namespaces WHERE id = 99`, "namespaces.parent_id",
		},
	} {
		plant(g, "10 owner=1 mark=1@15 details=1@15")
		g.Project(1, 10, "p")
		g.Exec("main", c.table)
		g.Run("scheduled_jobs=1")
		g.Attempt("retryable failed STILL_REFERENCED")
		want := "STILL_REFERENCED: " + c.reference + " still refers to the target"
		g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, want)
		g.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, want)
		g.WantMarked("10")
		g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
		g.Exec("main", c.gone)
		g.Attempt("completed succeeded")
		g.Exec("main", `DELETE FROM maintenance.river_job`)
	}
}

func failureIsNotedWhereNothingWas(g *servicetest.Groups) {
	g.Exec("main", `ALTER TABLE namespace_details ALTER state_metadata DROP NOT NULL, DROP CONSTRAINT namespace_details_state_metadata_check;
		CREATE TABLE owing (project_id bigint REFERENCES projects)`)
	plant(g, "10 owner=1 mark=1@15")
	g.Project(1, 10, "p")
	g.Exec("main", `INSERT INTO owing VALUES (1)`)
	g.Run("scheduled_jobs=1")
	for metadata, want := range map[string]string{"NULL": `{"deletion_error": "STILL_REFERENCED: owing.project_id still refers to the target"}`, "'[]'": "[]"} {
		g.Exec("main", `UPDATE namespace_details SET state_metadata = `+metadata)
		g.Attempt("retryable failed STILL_REFERENCED")
		g.Want("main", `SELECT state_metadata FROM namespace_details WHERE namespace_id = 10`, want)
		g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	}
}

func worksWithoutStatesDetailsAndTheOtherStore(g *servicetest.Groups) {
	g.Exec("main", `ALTER TABLE group_deletion_schedules RENAME TO away`)
	plant(g, "10 owner=1 details=1@15")
	g.Run("scheduled_jobs=1")
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0})
	g.Exec("main", `ALTER TABLE away RENAME TO group_deletion_schedules`)
	for _, schema := range []string{
		`ALTER TABLE namespaces DROP state`, `ALTER TABLE namespace_details DROP state_metadata, DROP deletion_scheduled_at`,
		`DROP TRIGGER namespaces_insert_details ON namespaces; DROP TABLE namespace_details`,
		`DROP TABLE epics, boards, achievements, events, todos, subscriptions, award_emoji, project_repositories, snippet_repositories CASCADE`,
	} {
		plant(g, "10 owner=1 mark=1@15")
		g.Project(1, 10, "p")
		g.Exec("main", schema+`; `+refusing("DELETE", "projects", "true"))
		g.Run("scheduled_jobs=1")
		g.Attempt("retryable failed")
		g.Exec("main", `DROP FUNCTION refuse CASCADE`)
		g.Attempt("completed succeeded")
		g.WantRows(map[string]int{"namespaces": 0, "projects": 0})
	}
}
