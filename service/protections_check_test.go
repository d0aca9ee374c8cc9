package service_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// keptPath is a way in which PostgreSQL deletes user 2, who is protected, when rows of branches are
// deleted or updated.
type keptPath struct {
	name, sql string
	// action of the loose foreign key from branches to parents.
	action string
	// alone is that it needs a database of its own.
	alone bool
}

func keptPaths() []keptPath {
	const gone = `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$; `
	const branch = `ALTER TABLE users ADD COLUMN branch_id bigint; UPDATE users SET branch_id = id; `
	const moving = `ALTER TABLE branches DROP CONSTRAINT branches_pkey; ALTER TABLE branches RENAME TO branches_1; CREATE TABLE branches (LIKE branches_1) PARTITION BY LIST (p_id);
		ALTER TABLE branches ATTACH PARTITION branches_1 DEFAULT; CREATE TABLE branches_0 PARTITION OF branches FOR VALUES IN (NULL); `
	return []keptPath{
		{"foreign key", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE`, "async_delete", false},
		{"foreign keys over two levels", branch + `CREATE TABLE teams (id bigint PRIMARY KEY, branch_id bigint REFERENCES branches ON DELETE CASCADE);
			INSERT INTO teams SELECT id, id FROM branches; ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES teams ON DELETE CASCADE`, "async_delete", false},
		{"foreign key to another column", branch + `ALTER TABLE branches ADD COLUMN code bigint UNIQUE; UPDATE branches SET code = id;
			ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches (code) ON DELETE CASCADE`, "async_delete", false},
		{"foreign key of another user", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE;
			ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE;
			UPDATE users SET manager_id = 1, branch_id = NULL WHERE id = 2; UPDATE users SET branch_id = 2 WHERE id = 1`, "async_delete", false},
		{"deferred foreign key", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED`, "async_delete", false},
		{"trigger for rows", gone + `CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete", false},
		{"trigger on partitions that is disabled on their table alone", `ALTER TABLE branches RENAME TO branches_1; CREATE TABLE branches (LIKE branches_1) PARTITION BY RANGE (id);
			ALTER TABLE branches ATTACH PARTITION branches_1 DEFAULT; ` +
			gone + `CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION gone(); ALTER TABLE ONLY branches DISABLE TRIGGER gone`, "async_delete", false},
		{"deferred constraint trigger", gone + `CREATE CONSTRAINT TRIGGER gone AFTER DELETE ON branches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete", false},
		{"trigger on an update", gone + `CREATE TRIGGER gone AFTER UPDATE ON branches FOR EACH ROW EXECUTE FUNCTION gone()`, "async_nullify", false},
		{"trigger after SET NULL", `CREATE TABLE teams (id bigint PRIMARY KEY, branch_id bigint REFERENCES branches ON DELETE SET NULL);
			INSERT INTO teams SELECT id, id FROM branches; ` +
			gone + `CREATE TRIGGER gone AFTER UPDATE ON teams FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete", false},
		{"inheritance", `CREATE TABLE branches_of_users () INHERITS (branches); ALTER TABLE branches_of_users ADD PRIMARY KEY (id);
			INSERT INTO branches_of_users SELECT * FROM ONLY branches; DELETE FROM ONLY branches; ` + branch +
			`ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches_of_users ON DELETE CASCADE`, "async_delete", false},
		{"trigger on the partition that a row leaves", moving + gone + `CREATE TRIGGER gone AFTER DELETE ON branches_1 FOR EACH ROW EXECUTE FUNCTION gone()`, "async_nullify", false},
		{"trigger on the partition that a row enters", moving + `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = NEW.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER INSERT ON branches_0 FOR EACH ROW EXECUTE FUNCTION gone()`, "async_nullify", false},
		{"trigger with a function that is called like one of ours", `CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_more() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_more()`, "async_delete", false},
		{"trigger with a function of ours that has another text", `CREATE OR REPLACE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_id() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_id()`, "async_delete", false},
		{"trigger for replicas", gone + `CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION gone(); ALTER TABLE branches ENABLE REPLICA TRIGGER gone;
			DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$`, "async_delete", true},
		{"rule of a table that PostgreSQL cascades to, like a trigger", `CREATE TABLE teams (id bigint PRIMARY KEY, branch_id bigint REFERENCES branches ON DELETE CASCADE);
			INSERT INTO teams SELECT id, id FROM branches; CREATE RULE gone AS ON DELETE TO teams DO ALSO DELETE FROM users WHERE id = OLD.id`, "async_delete", false},
		{"trigger on the queue", `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.primary_key_value; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER DELETE ON loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete", false},
		{"default of the id", `DELETE FROM users WHERE id <> 2; INSERT INTO branches VALUES (9, NULL);
			ALTER TABLE users ALTER id SET DEFAULT 9, ADD FOREIGN KEY (id) REFERENCES branches ON DELETE SET DEFAULT`, "async_delete", true},
		{"update of the id", `ALTER TABLE branches ADD code bigint UNIQUE; UPDATE branches SET code = id, p_id = CASE id WHEN 2 THEN 2 END;
			ALTER TABLE users ADD FOREIGN KEY (id) REFERENCES branches (code) ON UPDATE CASCADE`, `update_column_to, target_column: code, target_value: "9"`, false},
	}
}

func TestProtect_NoPathOfPostgreSQLLeadsToAProtectedUser(t *testing.T) {
	shared := servicetest.New(servicetest.Parallel(t), "main", "main")
	const pending = `SELECT coalesce(string_agg(primary_key_value::text, ' '), 'none') FROM loose_foreign_keys_deleted_records
		WHERE fully_qualified_table_name = 'public.parents'`
	for _, c := range keptPaths() {
		t.Run(c.name, func(t *testing.T) {
			e := shared
			if c.alone {
				e = servicetest.New(t, "main", "main")
			}
			e.InTurn(t)
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
			for id := range 3 {
				e.User(id+1, 0, 1)
			}
			e.Exec("main", `CREATE TABLE branches (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON branches (p_id);
				INSERT INTO branches SELECT i, i FROM generate_series(1, 5) i`)
			e.Exec("main", c.sql)
			e.Deleted("main", "parents", 1, 5)
			s := e.Service("branches:\n  - {table: parents, column: p_id, on_delete: " + c.action + "}\n")
			protect(t, s, "user", 2)
			dry := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: true}))(t)
			if !strings.Contains(c.name, "trigger") && !strings.Contains(c.name, "update") {
				assert.That(t, dry.Counts["processed_records"] == 4 && dry.Counts["rescheduled_records"] == 1 && strings.HasPrefix(dry.Reason, "1 record held, PROTECTED: user 2 is protected by ann: evidence"), "dry run %+v", dry)
			}
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, "succeeded")
			assert.That(t, strings.HasPrefix(r.Reason, "1 record held, PROTECTED: user 2 is protected by") &&
				strings.Contains(r.Reason, "would be deleted with rows of "), "reason %q", r.Reason)
			e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE id = 2`, "2")
			e.Want("main", pending, "2")
			// The other keys are done, and this one when the protection ends.
			assert.That(t, r.Counts["processed_records"] == 4 && r.Counts["rescheduled_records"] == 1, "counts %v", r.Counts)
			e.Exec("main", `DELETE FROM maintenance.protected_targets; UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
			servicetest.RunBatch(t, s, "main")
			e.Want("main", pending, "none")
			e.Want("main", `SELECT count(*) FROM users WHERE id = 2`, "0")
		})
	}
}

// protectedPath leads from a user or group, whose deletion is asked for, to user 28, who is protected.
type protectedPath struct{ name, sql, words string }

const byAnn28 = "user 28 is protected by ann: evidence"

// wantKept fails the test unless the plan and the candidates of a dry run say PROTECTED by the path.
func (p protectedPath) wantKept(t *testing.T, s *service.Service, worker, kind string, id int64) {
	t.Helper()
	plan := assert.Must(s.PlanDeletion(t.Context(), kind, id))(t)
	assert.That(t, plan.Refused != nil && plan.Refused.Reason == "PROTECTED" && plan.Refused.Detail == byAnn28+p.words+")", "plan %+v", plan.Refused)
	dry := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: worker, DryRun: true}))(t)
	assert.That(t, len(dry.Candidates) == 1 && strings.HasPrefix(dry.Candidates[0].Reason, "PROTECTED: "+byAnn28+p.words+")"), "candidates %+v", dry.Candidates)
}

const through = " (would be deleted through "

func TestProtect_TheEndOfAUserDeletesNoProtectedOne(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main")
	for _, p := range []protectedPath{
		{"another user", `ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; UPDATE users SET manager_id = 27 WHERE id = 28`, through + "users.manager_id"},
		{"users over two levels", `ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; UPDATE users SET manager_id = 7 WHERE id = 28;
			UPDATE users SET manager_id = 27 WHERE id = 7`, through + "users.manager_id, users.manager_id"},
		{"a name", `CREATE UNIQUE INDEX names ON users (username); ALTER TABLE users ADD CONSTRAINT names UNIQUE USING INDEX names;
			ALTER TABLE users ADD COLUMN manager text REFERENCES users (username) ON DELETE CASCADE; UPDATE users SET manager = 'u27' WHERE id = 28`, through + "users.manager"},
		{"two columns", `ALTER TABLE users ADD UNIQUE (id, organization_id), ADD COLUMN a bigint, ADD COLUMN b bigint, ADD FOREIGN KEY (a, b) REFERENCES users (id, organization_id) ON DELETE CASCADE;
			UPDATE users SET a = 27, b = 1 WHERE id = 28`, through + "users.a,b"},
		{"arrays", `CREATE TABLE tags (path int[] PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE); CREATE INDEX ON tags (user_id);
			INSERT INTO tags VALUES ('{1,2}', 27), ('{3}', 28); ALTER TABLE users ADD COLUMN path int[] REFERENCES tags ON DELETE CASCADE;
			UPDATE users SET path = '{1,2}' WHERE id = 28`, through + "tags.user_id, users.path"},
		{"the personal namespace", `ALTER TABLE users ADD COLUMN home_id bigint REFERENCES namespaces ON DELETE CASCADE; UPDATE users SET home_id = 27 WHERE id = 28`, through + "users.home_id"},
		{"a row of a list without a foreign key", `INSERT INTO emails (id, user_id, email) VALUES (9, 27, 'x'); ALTER TABLE emails DROP CONSTRAINT IF EXISTS emails_user_id_fkey;
			ALTER TABLE users ADD COLUMN email_id bigint REFERENCES emails ON DELETE CASCADE; UPDATE users SET email_id = 9 WHERE id = 28`, through + "emails.user_id, users.email_id"},
		{"the row of the queue", `ALTER TABLE ghost_user_migrations DROP CONSTRAINT ghost_user_migrations_user_id_fkey; ALTER TABLE users ADD COLUMN mig bigint REFERENCES ghost_user_migrations ON DELETE CASCADE;
			UPDATE users SET mig = (SELECT id FROM ghost_user_migrations WHERE user_id = 27) WHERE id = 28`, through + "users.mig"},
	} {
		t.Run(p.name, func(t *testing.T) {
			e.InTurn(t)
			g := e.Ghosts()
			g.Doomed(27)
			g.User(28, 0)
			g.Exec("main", p.sql)
			s := g.Service(g.WithQueue)
			protect(t, s, "user", 28)
			p.wantKept(t, s, servicetest.GhostUsers, "user", 27)
			before := g.State("main", "users", "namespaces", "emails", "routes", "members", "issues")
			r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.GhostUsers}))(t)
			servicetest.WantState(t, r, "succeeded")
			g.WantLog(1, `"msg":"user kept`, `"dry_run":false`, `"user_id":27`, byAnn28)
			servicetest.WantDeletion(t, g.Deletion(s, servicetest.Authorized(27)), servicetest.DeletionRefused+"PROTECTED")
			g.WantSame("main", before, "users", "namespaces", "emails", "routes", "members", "issues")
		})
	}
}

func TestProtect_TheRemovalOfAGroupDeletesNoProtectedUser(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	const home, seat = `ALTER TABLE users ADD COLUMN home_id bigint REFERENCES namespaces ON DELETE CASCADE; UPDATE users SET home_id = `, `ALTER TABLE users ADD COLUMN seat_id bigint; UPDATE users SET seat_id = 1 WHERE id = 28; `
	for _, p := range []protectedPath{
		{"the group", home + `10 WHERE id = 28`, through + "users.home_id"},
		{"a group below it", home + `12 WHERE id = 28`, through + "users.home_id"},
		{"the namespace of a project", home + `10002 WHERE id = 28`, through + "users.home_id"},
		{"rows of a project", seat + `CREATE TABLE branches (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE); INSERT INTO branches VALUES (1, 2);
			ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES branches ON DELETE CASCADE`, through + "branches.project_id, users.seat_id"},
		{"rows that inherit", seat + `CREATE TABLE places (id bigint, project_id bigint REFERENCES projects ON DELETE CASCADE); CREATE TABLE branches (PRIMARY KEY (id)) INHERITS (places);
			INSERT INTO branches VALUES (1, 2); ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES branches ON DELETE CASCADE`, through + "places.project_id, users.seat_id"},
		{"partitions", seat + `CREATE TABLE branches (id bigint PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE) PARTITION BY HASH (id);
			CREATE TABLE branches_0 PARTITION OF branches FOR VALUES WITH (MODULUS 1, REMAINDER 0); INSERT INTO branches VALUES (1, 2);
			ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES branches_0 ON DELETE CASCADE`, through + "branches.project_id, users.seat_id"},
		{"a note without a foreign key", `UPDATE notes SET project_id = NULL, organization_id = 1; ALTER TABLE users ADD COLUMN note_id bigint REFERENCES notes ON DELETE CASCADE;
			UPDATE users SET note_id = 1004 WHERE id = 28`, through + "issues.namespace_id, notes.noteable_id, users.note_id"},
		{"a member without a foreign key", `ALTER TABLE members DROP CONSTRAINT members_member_namespace_id_fkey; UPDATE members SET source_id = 999 WHERE user_id = 2; ` + seat +
			`UPDATE members SET id = -1 WHERE user_id = 2; UPDATE users SET seat_id = -1 WHERE id = 28; ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES members ON DELETE CASCADE`, through + "users.seat_id"},
		{"a route without a foreign key", `ALTER TABLE routes DROP CONSTRAINT routes_namespace_id_fkey; UPDATE routes SET id = 0 - id; ` + seat +
			`UPDATE routes SET id = 1 WHERE source_type = 'Project' AND source_id = 2; ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES routes ON DELETE CASCADE`, through + "routes.source_id, users.seat_id"},
		{"details without a foreign key", `ALTER TABLE namespace_details DROP CONSTRAINT namespace_details_namespace_id_fkey; INSERT INTO namespace_details (namespace_id) VALUES (12) ON CONFLICT DO NOTHING; ` + seat +
			`UPDATE users SET seat_id = 12 WHERE id = 28; ALTER TABLE users ADD FOREIGN KEY (seat_id) REFERENCES namespace_details ON DELETE CASCADE`, through + "users.seat_id"},
		{"the mark of a group that would be restored", `ALTER TABLE group_deletion_schedules DROP CONSTRAINT group_deletion_schedules_group_id_fkey; DELETE FROM members WHERE user_id = 1; ALTER TABLE users ADD COLUMN mark_id bigint REFERENCES group_deletion_schedules ON DELETE CASCADE;
			UPDATE users SET mark_id = 10 WHERE id = 28`, through + "users.mark_id"},
	} {
		t.Run(p.name, func(t *testing.T) {
			e.InTurn(t)
			g := family(e)
			g.User(28)
			g.Exec("main", p.sql)
			protect(t, g.Service, "user", 28)
			p.wantKept(t, g.Service, servicetest.AdjournedGroups, "group", 10)
			before := g.State("main", servicetest.Written...)
			g.Run("held_groups=1")
			g.QueueJob(10, 1)
			g.Attempt("cancelled refused PROTECTED")
			g.WantSame("main", before, servicetest.Written...)
			// A removal that has started stops at the beginning of its next attempt.
			g.Exec("main", `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1)`)
			before = g.State("main", "projects", "members", "routes", "notes")
			g.QueueJob(10, 1)
			g.Attempt("retryable failed PROTECTED")
			g.WantSame("main", before, "projects", "members", "routes", "notes")
		})
	}
}

// A write to the queue of users, or to that of placeholder users, deletes what the database adds to it.
func TestProtect_AWriteToAQueueDeletesNoProtectedUser(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main")
	const (
		gone     = `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = 28; RETURN NULL; END $$; CREATE TRIGGER gone `
		rows     = ` FOR EACH ROW EXECUTE FUNCTION gone(); `
		orphan   = `ALTER TABLE ghost_user_migrations DROP CONSTRAINT ghost_user_migrations_user_id_fkey; UPDATE ghost_user_migrations SET user_id = 999 WHERE user_id = 26; `
		refusing = `UPDATE issues SET author_id = 26; CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$;
			CREATE TRIGGER no BEFORE UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION no(); `
		kept = "1 queue row kept: PROTECTED: " + byAnn28 + " (would be deleted with rows of ghost_user_migrations)"
	)
	refused := func(code string) string { return strings.ReplaceAll(refusing, "{code}", code) }
	const other = "users_ghost_user_migrations"
	for _, c := range []struct{ name, sql, reason, row string }{
		{"an orphan and a foreign key", orphan + `ALTER TABLE users ADD COLUMN mig bigint REFERENCES ghost_user_migrations ON DELETE CASCADE;
			UPDATE users SET mig = (SELECT id FROM ghost_user_migrations WHERE user_id = 999) WHERE id = 28`, kept, "999 later"},
		{"an orphan and a trigger", orphan + gone + `AFTER DELETE ON ghost_user_migrations FOR EACH ROW WHEN (OLD.user_id = 999) EXECUTE FUNCTION gone()`, kept, "999 later"},
		{"an orphan", orphan, "", "NULL"},
		{"a user who is postponed", refused("P0001") + gone + `AFTER UPDATE ON ghost_user_migrations` + rows, kept, "26 due"},
		{"a user who is postponed in the queue of the other name", refused("P0001") + `ALTER TABLE ghost_user_migrations RENAME TO ` + other + `; ` +
			gone + `AFTER UPDATE ON ` + other + rows, strings.Replace(kept, "ghost", "users_ghost", 1), "26 due"},
		{"a user who is deferred", refused("55P03") + gone + `AFTER UPDATE ON ghost_user_migrations` + rows, kept, "26 due"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			g := e.Ghosts()
			g.Doomed(26, 27)
			g.User(28, 0)
			g.Exec("main", c.sql)
			s := g.Service()
			protect(t, s, "user", 28)
			r := g.Runs(s, false)
			servicetest.WantState(t, r, "succeeded")
			assert.That(t, r.Counts["migrated_users"] == 1 && strings.Contains(r.Reason, c.reason), "counts %v, reason %q", r.Counts, r.Reason)
			g.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (27, 28)`, "28")
			queue := "ghost_user_migrations"
			if strings.Contains(c.sql, other) {
				queue = other
			}
			g.Want("main", `SELECT string_agg(user_id || CASE WHEN consume_after > now() THEN ' later' ELSE ' due' END, '') FROM `+queue, c.row)
			if c.reason == "" {
				g.Want("main", `SELECT count(*) FROM maintenance.receipts WHERE "table" = 'ghost_user_migrations' AND rule LIKE 'remove an orphan%' AND run_id IS NOT NULL`, "1")
			}
		})
	}
	t.Run("a claim", func(t *testing.T) {
		e.InTurn(t)
		e.Placeholders()
		e.User(28, 0, 1)
		e.Detail(1, 0, `NULL`)
		e.Exec("main", gone+`AFTER UPDATE ON import_placeholder_user_details`+rows)
		s := e.Service("", e.WithQueue)
		protect(t, s, "user", 28)
		r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.PlaceholderUsers}))(t)
		servicetest.WantState(t, r, "failed")
		assert.That(t, strings.Contains(r.Error, "PROTECTED: "+byAnn28+" (would be deleted with rows of import_placeholder_user_details)"), "error %q", r.Error)
		e.Want("main", `SELECT count(*) FROM users WHERE id = 28`, "1")
		e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	})
}
