package cli_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// applied makes a database with all tables of the application, migrated, which the environment names.
func (sh *shell) applied() *pgx.Conn {
	sh.t.Helper()
	return sh.database("main", servicetest.Migrated("main"))
}

// finding is one of doctor --output json.
type finding struct{ Name, Database, Status, Problem, Remedy string }

func findings(t *testing.T, out string) (all []finding) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

func TestDoctor_FindsNothingButMissingIndexesOnTheReferenceSchema(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	out := sh.want(0, "doctor", "0 errors, 3 warnings")
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	// As the application makes them.
	known := "oauth_access_tokens (application_id), personal_access_tokens (group_id), user_details (bot_namespace_id)"
	var unindexed []string
	for _, f := range findings(t, sh.want(0, "doctor --output json")) {
		if f.Status != "ok" && f.Name == "indexes" {
			unindexed = append(unindexed, strings.TrimPrefix(f.Remedy, "CREATE INDEX CONCURRENTLY ON public."))
		} else if f.Status != "ok" || f.Name == "" || f.Problem+f.Remedy != "" {
			t.Errorf("%+v", f)
		}
	}
	equal(t, strings.Join(unindexed, ", "), known, "no indexes on")
}

// fault is something that is wrong, and what is to be said about it.
type fault struct {
	name, change, undo string
	environment        [2]string
	status, where      string
	problem, remedy    string
}

func faults(taken string) []fault {
	return []fault{
		{
			name: "not migrated", change: `ALTER TABLE maintenance.schema_migrations RENAME TO away`,
			undo: `ALTER TABLE maintenance.away RENAME TO schema_migrations`, status: "error", where: "schema",
			problem: "the schema maintenance is missing or old", remedy: "caretaker migrate",
		},
		{
			name: "no index", change: `ALTER TABLE issues RENAME COLUMN author_id TO was; ALTER TABLE issues ADD COLUMN author_id bigint`,
			undo:   `ALTER TABLE issues DROP COLUMN author_id; ALTER TABLE issues RENAME COLUMN was TO author_id`,
			status: "warning", where: "indexes", problem: "no index finds rows of public.issues by author_id",
			remedy: "CREATE INDEX CONCURRENTLY ON public.issues (author_id)",
		},
		{
			name: "unknown reference", change: `CREATE TABLE diaries (owner bigint REFERENCES users); CREATE INDEX ON diaries (owner)`,
			undo: `DROP TABLE diaries`, status: "warning", where: "references", problem: "users to whom diaries.owner refers are not deleted",
			remedy: "ON DELETE CASCADE or SET NULL",
		},
		{
			name: "port", environment: [2]string{"CARETAKER_LISTEN", taken}, status: "warning", where: "ports",
			problem: "is in use", remedy: "CARETAKER_LISTEN",
		},
		{
			name: "replica", environment: [2]string{"CARETAKER_DATABASES_MAIN_REPLICA_URL", "postgres://127.0.0.1:1/nowhere"}, status: "warning",
			where: "replica", problem: "the replica does not answer", remedy: "databases.main.replica_url",
		},
		{
			name: "one database twice", environment: [2]string{"CARETAKER_DATABASES_CI_URL", "main"}, status: "error", where: "connection",
			problem: "is the same database as databases.main.url", remedy: "leave it out",
		},
		{
			name: "unreachable", environment: [2]string{"CARETAKER_DATABASES_CI_URL", "postgres://127.0.0.1:1/nowhere"}, status: "error",
			where: "connection", problem: "ci", remedy: "databases.ci.url",
		},
		{
			name: "configuration", environment: [2]string{"CARETAKER_AUTH_TOKEN_FILE", "/nowhere"}, status: "error", where: "configuration",
			problem: "auth.token_file", remedy: "docs/configuration.md",
		},
		{
			name: "definitions", environment: [2]string{"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", "file"}, status: "error",
			where: "definitions", problem: "child_missing: nowhere.user_id -> users", remedy: "accept-absent",
		},
	}
}

func TestDoctor_EachFaultHasANameAndARemedy(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	listener := servicetest.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	for _, c := range faults(listener.Addr().String()) {
		t.Run(c.name, func(t *testing.T) {
			sh := sh.sub(t)
			if c.change != "" {
				execute(t, sql, c.change)
				defer execute(t, sql, c.undo)
			}
			switch value := c.environment[1]; value {
			case "":
			case "main":
				sh.set(c.environment[0], sql.Config().ConnString())
			case "file":
				sh.defined("nowhere: [{table: users, column: user_id, on_delete: async_delete}]")
			default:
				sh.set(c.environment[0], value)
			}
			sh.wantFault(c)
		})
	}
}

// wantFault fails the test unless doctor says that of a fault, and exits accordingly.
func (sh *shell) wantFault(c fault) {
	sh.t.Helper()
	t := sh.t
	code := map[string]int{"warning": 0, "error": 1}[c.status]
	found := false
	for _, f := range findings(t, sh.want(code, "doctor --output json")) {
		found = found || f.Name == c.where && f.Status == c.status && strings.Contains(f.Problem, c.problem) && strings.Contains(f.Remedy, c.remedy)
		if f.Status == "error" && c.status != "error" || (f.Status == "ok") != (f.Problem == "") || (f.Problem == "") != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	if !found {
		t.Errorf("no %s of %s %q, %q: %s", c.status, c.where, c.problem, c.remedy, sh.want(code, "doctor"))
	}
}

func TestDoctor_GrantsMakeARoleThatItHasNothingToSayAbout(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	role := fmt.Sprintf("role_%d", sql.PgConn().PID())
	execute(t, sql, "REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() { execute(t, sql, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	script := sh.want(0, "doctor --grants --role "+role, "GRANT SELECT, UPDATE, DELETE ON public.issues TO "+role+";")
	sh.set("CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString()+"&options=-c%20role%3D"+role)
	sh.want(1, "doctor", "application: it has no application schema", "GRANT USAGE ON SCHEMA public TO")
	execute(t, sql, script)
	sh.want(0, "doctor", "0 errors, 3 warnings")
	execute(t, sql, "REVOKE DELETE ON issues FROM "+role)
	sh.want(1, "doctor", "lacks DELETE on", "GRANT DELETE ON public.issues TO "+role, "1 error, 3 warnings")
	execute(t, sql, "GRANT DELETE ON issues TO "+role+"; ALTER TABLE issues ENABLE ROW LEVEL SECURITY")
	sh.want(1, "doctor", "row-level security may hide rows of public.issues", "BYPASSRLS", "1 error, 3 warnings")
	var scripts []struct {
		Database string
		Grants   []string
	}
	if err := json.Unmarshal([]byte(sh.want(0, "doctor --grants --output json")), &scripts); err != nil || len(scripts) != 1 ||
		scripts[0].Database != "main" || !strings.HasSuffix(scripts[0].Grants[0], " TO caretaker;") {
		t.Errorf("%v, %v", scripts, err)
	}
}

func TestDoctor_GrantsOfOneDatabaseAreNotMixedWithOthers(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	sh.set("CARETAKER_DATABASES_CI_URL", databases.Clone(t, devdb.Template{Name: "bare", Schema: "ci"}))
	sh.migrate()
	all := sh.want(0, "doctor --grants", "DO NOT RUN ALL OF THIS ON ONE DATABASE", "doctor --grants --database NAME",
		"To be run on the database main (databases.main.url), and on no other", "To be run on the database ci (databases.ci.url)")
	parts := map[string]string{}
	for _, name := range []string{"main", "ci"} {
		part := sh.want(0, "doctor --grants --database "+name)
		if _, parts[name], _ = strings.Cut(part, "\n\n"); !strings.Contains(all, parts[name]) || strings.Contains(part, "DO NOT") {
			t.Errorf("%s: %s", name, part)
		}
	}
	if !strings.Contains(parts["main"], "public.issues") || strings.Contains(parts["ci"], "public.issues") {
		t.Errorf("the parts are mixed: %s", all)
	}
	out := sh.want(0, "doctor --grants --database ci --output json", `"database": "ci"`)
	lacks(t, out, `"main"`)
	sh.want(2, "doctor --grants --database sec", `--database: there is no "sec" in the configuration: there are main, ci`)
	sh.want(2, "doctor --database ci", "--database is for --grants")
}

func TestDoctor_AWrongConfigurationIsAnError(t *testing.T) {
	sh := newShell(t)
	sh.want(1, "doctor --config /nowhere", "error    configuration:", "/nowhere")
	sh.want(1, "doctor --grants --config /nowhere", "/nowhere")
}
