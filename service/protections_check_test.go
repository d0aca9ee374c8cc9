package service_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// keptPath is a way in which PostgreSQL deletes user 2, who is protected, when rows of branches are
// deleted or updated.
type keptPath struct {
	name, sql string
	// action of the loose foreign key from branches to parents.
	action string
}

func keptPaths() []keptPath {
	const branch = `ALTER TABLE users ADD COLUMN branch_id bigint; UPDATE users SET branch_id = id; `
	return []keptPath{
		{"foreign key", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE`, "async_delete"},
		{"foreign keys over two levels", branch + `CREATE TABLE teams (id bigint PRIMARY KEY, branch_id bigint REFERENCES branches ON DELETE CASCADE);
			INSERT INTO teams SELECT id, id FROM branches; ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES teams ON DELETE CASCADE`, "async_delete"},
		{"foreign key to another column", branch + `ALTER TABLE branches ADD COLUMN code bigint UNIQUE; UPDATE branches SET code = id;
			ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches (code) ON DELETE CASCADE`, "async_delete"},
		{"foreign key of another user", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE;
			ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE;
			UPDATE users SET manager_id = 1, branch_id = NULL WHERE id = 2; UPDATE users SET branch_id = 2 WHERE id = 1`, "async_delete"},
		{"deferred foreign key", branch + `ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED`, "async_delete"},
		{"trigger for rows", `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER DELETE ON branches FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete"},
		{"deferred constraint trigger", `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE CONSTRAINT TRIGGER gone AFTER DELETE ON branches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete"},
		{"trigger on an update", `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER UPDATE ON branches FOR EACH ROW EXECUTE FUNCTION gone()`, "async_nullify"},
		{"trigger after SET NULL", `CREATE TABLE teams (id bigint PRIMARY KEY, branch_id bigint REFERENCES branches ON DELETE SET NULL);
			INSERT INTO teams SELECT id, id FROM branches;
			CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = OLD.id; RETURN NULL; END $$;
			CREATE TRIGGER gone AFTER UPDATE ON teams FOR EACH ROW EXECUTE FUNCTION gone()`, "async_delete"},
		{"inheritance", `CREATE TABLE branches_of_users () INHERITS (branches); ALTER TABLE branches_of_users ADD PRIMARY KEY (id);
			INSERT INTO branches_of_users SELECT * FROM ONLY branches; DELETE FROM ONLY branches; ` + branch +
			`ALTER TABLE users ADD FOREIGN KEY (branch_id) REFERENCES branches_of_users ON DELETE CASCADE`, "async_delete"},
	}
}

func TestProtect_NoPathOfPostgreSQLLeadsToAProtectedUser(t *testing.T) {
	t.Parallel()
	const pending = `SELECT coalesce(string_agg(primary_key_value::text, ' '), 'none') FROM loose_foreign_keys_deleted_records
		WHERE fully_qualified_table_name = 'public.parents'`
	for _, c := range keptPaths() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.New(t, "main", "main")
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
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, "succeeded")
			if !strings.HasPrefix(r.Reason, "1 record held, PROTECTED: user 2 is protected by") || !strings.Contains(r.Reason, "is deleted with rows of branches") {
				t.Errorf("reason %q", r.Reason)
			}
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

func TestProtect_TheEndOfAUserDeletesNoProtectedOne(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(27)
	g.User(28, 0)
	g.Exec("main", `ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; UPDATE users SET manager_id = 27 WHERE id = 28`)
	s := g.Service()
	protect(t, s, "user", 28)
	r := assert.Must(s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.GhostUsers}))(t)
	servicetest.WantState(t, r, "succeeded")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE id IN (27, 28)`, "27 28")
	g.WantLog(1, `"msg":"user kept`, `"user_id":27`, "user 28 is protected by ann")
}

func TestProtect_TheRemovalOfAGroupDeletesNoProtectedUser(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 30)
	g.Exec("main", `ALTER TABLE users ADD COLUMN home_id bigint REFERENCES namespaces ON DELETE CASCADE; INSERT INTO users (id, username, email, projects_limit, user_type, organization_id, home_id)
		VALUES (28, 'u28', 'u28@example.com', 0, 0, 1, 10)`)
	protect(t, g.Service, "user", 28)
	g.QueueJob(10, 1)
	g.Work(g.Service, "destroy_group")
	g.Want("main", `SELECT count(*) FROM users WHERE id = 28`, "1")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id = 10`, "1")
	g.Want("main", `SELECT errors[1] ->> 'error' LIKE '%PROTECTED: user 28 is protected by ann%' FROM maintenance.river_job`, "true")
}
