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
	"github.com/caretaker-go/caretaker/internal/assert"
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
		n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
		assert.That(t, n <= 80, "%d characters: %s", n, line)
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
	assert.Equal(t, strings.Join(unindexed, ", "), known, "no indexes on")
}

// fault is something that is wrong, how it is made, and what doctor reports about it.
type fault struct {
	status, where, problem, remedy string
	variable, value                string // of the environment
	change, undo                   string // of the database
}

func faults(main *pgx.Conn, taken, definitions string) []fault {
	url := main.Config().ConnString()
	const ciURL, nowhere = "CARETAKER_DATABASES_CI_URL", "postgres://127.0.0.1:1/nowhere"
	return []fault{
		{
			"error", "schema", "the maintenance schema is missing or outdated", "caretaker migrate", "", "",
			`ALTER TABLE maintenance.schema_migrations RENAME TO away`, `ALTER TABLE maintenance.away RENAME TO schema_migrations`,
		},
		{
			"error", "schema", "is required", "run `caretaker migrate`", "", "",
			`UPDATE maintenance.schema_migrations SET is_applied = version_id < (SELECT max(version_id) FROM maintenance.schema_migrations)`,
			`UPDATE maintenance.schema_migrations SET is_applied = true`,
		},
		{
			"warning", "schema", "to version 9999, but this caretaker supports only", "install the newer caretaker", "", "",
			`INSERT INTO maintenance.schema_migrations_main (version_id, is_applied) VALUES (9999, true)`,
			`DELETE FROM maintenance.schema_migrations_main WHERE version_id = 9999`,
		},
		{
			"error", "application", "has no application schema", "search_path", "", "",
			`ALTER SCHEMA public RENAME TO away`, `ALTER SCHEMA away RENAME TO public`,
		},
		{
			"warning", "indexes", "public.issues has no index on author_id", "CREATE INDEX CONCURRENTLY ON public.issues (author_id)", "", "",
			`ALTER TABLE issues RENAME COLUMN author_id TO was; ALTER TABLE issues ADD COLUMN author_id bigint`,
			`ALTER TABLE issues DROP COLUMN author_id; ALTER TABLE issues RENAME COLUMN was TO author_id`,
		},
		{
			"warning", "references", "cannot delete users that diaries.owner refers to", "ON DELETE CASCADE or SET NULL", "", "",
			`CREATE TABLE diaries (owner bigint REFERENCES users); CREATE INDEX ON diaries (owner)`, `DROP TABLE diaries`,
		},
		{
			"error", "sequences", "sequence_behind: maintenance.audit", "lfk install --database main", "", "",
			`INSERT INTO maintenance.audit OVERRIDING SYSTEM VALUE VALUES (9, now(), '', '', '', '', '', '', '')`, `DELETE FROM maintenance.audit`,
		},
		{
			"error", "sequences", "sequence_behind: maintenance.river_job", "lfk install --database main", "", "",
			`INSERT INTO maintenance.river_job (id, args, kind, max_attempts) VALUES (9, '{}', 'x', 1)`, `DELETE FROM maintenance.river_job`,
		},
		{"warning", "ports", "listen: another program uses", "CARETAKER_LISTEN", "CARETAKER_LISTEN", taken, "", ""},
		{
			"error", "ports", "192.0.2.1:9999", "correct metrics_listen (CARETAKER_METRICS_LISTEN)",
			"CARETAKER_METRICS_LISTEN", "192.0.2.1:9999", "", "", // an address of another host
		},
		{"warning", "replica", "the replica is not used, because it does not answer", "databases.main.replica_url", "CARETAKER_DATABASES_MAIN_REPLICA_URL", nowhere, "", ""},
		{"error", "connection", "points to the same database as databases.main.url", "remove databases.ci.url", ciURL, url, "", ""},
		{"error", "connection", "ci", "databases.ci.url", ciURL, nowhere, "", ""},
		{"error", "configuration", "auth.token_file", "docs/reference/configuration.md", "CARETAKER_AUTH_TOKEN_FILE", "/nowhere", "", ""},
		{
			"error", "definitions", "child_missing: nowhere.user_id -> users", "accept-absent",
			"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", definitions, "", "",
		},
	}
}

// faultsOfTheServer are settings, versions and clocks that are not as they should be.
func faultsOfTheServer(main *pgx.Conn) (all []fault) {
	const mainURL = "CARETAKER_DATABASES_MAIN_URL"
	url := main.Config().ConnString()
	set := func(setting string) (change, undo string) {
		alter := "ALTER DATABASE " + main.Config().Database
		name, _, _ := strings.Cut(setting, " ")
		return alter + " SET " + setting, "SET " + name + " = DEFAULT; " + alter + " RESET " + name
	}
	for setting, f := range map[string]fault{
		"default_transaction_read_only = on": {"error", "connection", "read-only", "default_transaction_read_only", "", "", "", ""},
		"lock_timeout = '900ms'":             {"warning", "pooler", "lock_timeout is less than a second", " SET lock_timeout = 0", "", "", "", ""},
		"array_nulls = off": {
			"error", "pooler", "array_nulls is off, so jobs fail if a pooler is used", " SET array_nulls = on",
			mainURL, url + "&default_query_exec_mode=exec", "", "",
		},
		"bytea_output = escape": {
			"error", "pooler", "bytea_output is escape, so jobs fail if a pooler is used", " SET bytea_output = hex",
			mainURL, url + "&default_query_exec_mode=exec", "", "",
		},
	} {
		f.change, f.undo = set(setting)
		all = append(all, f)
	}
	for functions, f := range map[string]fault{
		ahead: {"warning", "clock", "the server's clock is 1m0s ahead of the clock of this machine", "synchronize both clocks with NTP", "", "", "", ""},
		answering("server_version_num", "130014"): {"error", "version", "caretaker supports versions 14 to 18", "upgrade the server", "", "", "", ""},
		answering("server_version_num", "190000"): {"warning", "version", "caretaker supports versions 14 to 18", "install a newer caretaker", "", "", "", ""},
		answering("TimeZone", "Asia/Kolkata"): {
			"error", "clock", "the session's TimeZone is Asia/Kolkata", "configure the pooler to preserve the TimeZone setting", "", "", "", "",
		},
	} {
		f.change, f.undo = deceit(functions), `DROP SCHEMA deceit CASCADE`
		f.variable, f.value = mainURL, url+deceived
		all = append(all, f)
	}
	return all
}

func TestDoctor_EachFaultHasANameAndARemedy(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_INSECURE", "true")
	sql := sh.applied()
	listener := assert.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	definitions := sh.sub(t).defined("nowhere: [{table: users, column: user_id, on_delete: async_delete}]")
	for _, f := range append(faults(sql, listener.Addr().String(), definitions), faultsOfTheServer(sql)...) {
		t.Run(f.problem+" "+f.status, func(t *testing.T) {
			sh := sh.sub(t)
			if f.variable != "" {
				sh.set(f.variable, f.value)
			}
			if f.change != "" {
				execute(t, sql, f.change)
				defer execute(t, sql, f.undo)
			}
			sh.wantFault(f.status, f.where, f.problem, f.remedy)
		})
	}
}

// wantFault fails the test unless doctor reports that of a fault, and exits accordingly.
func (sh *shell) wantFault(status, where, problem, remedy string) {
	sh.t.Helper()
	t := sh.t
	code := map[string]int{"warning": 0, "error": 1}[status]
	found := false
	for _, f := range findings(t, sh.want(code, "doctor --output json")) {
		found = found || f.Name == where && f.Status == status && strings.Contains(f.Problem, problem) && strings.Contains(f.Remedy, remedy)
		assert.That(t, (f.Status != "error" || status == "error") &&
			(f.Status == "ok") == (f.Problem == "") && (f.Problem == "") == (f.Remedy == ""), "%+v", f)
	}
	if !found {
		t.Errorf("no %s of %s %q, %q: %s", status, where, problem, remedy, sh.want(code, "doctor"))
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
	sh.want(1, "doctor", "application: the database has no application schema", "GRANT USAGE ON SCHEMA public TO")
	execute(t, sql, script)
	sh.want(0, "doctor", "0 errors, 3 warnings")
	execute(t, sql, "REVOKE DELETE ON issues FROM "+role)
	sh.want(1, "doctor", "is missing DELETE on", "GRANT DELETE ON public.issues TO "+role, "1 error, 3 warnings")
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
		"For the database main only (databases.main.url)", "For the database ci only (databases.ci.url)")
	parts := map[string]string{}
	for _, name := range []string{"main", "ci"} {
		part := sh.want(0, "doctor --grants --database "+name)
		if _, parts[name], _ = strings.Cut(part, "\n\n"); !strings.Contains(all, parts[name]) || strings.Contains(part, "DO NOT") {
			t.Errorf("%s: %s", name, part)
		}
	}
	assert.That(t, strings.Contains(parts["main"], "public.issues") &&
		!strings.Contains(parts["ci"], "public.issues"), "the parts are mixed: %s", all)
	out := sh.want(0, "doctor --grants --database ci --output json", `"database": "ci"`)
	assert.Lacks(t, out, `"main"`)
	sh.want(2, "doctor --grants --database "+
		"sec", `--database: "sec" is not in the configuration: the configured databases are main, ci`)
	sh.want(2, "doctor --database ci", "--database requires --grants")
}

func TestDoctor_AWrongConfigurationIsAnError(t *testing.T) {
	sh := newShell(t)
	sh.want(1, "doctor --config /nowhere", "error    configuration:", "/nowhere")
	sh.want(1, "doctor --grants --config /nowhere", "/nowhere")
	sh.applied()
	sh.set("CARETAKER_AUTH_TOKENS_FILE", saved(t, "tokens.yml", "- {nam: a}\n- {rol: b}\n"))
	sh.want(1, "doctor", "line 1: field nam not found, line 2: field rol not found", "1 error")
}

func TestDoctor_IsFineWithThePortsOfItsOwnServer(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	r := sh.serving()
	sh.set("CARETAKER_LISTEN", r.address)
	sh.set("CARETAKER_METRICS_LISTEN", r.log.field(t, "serving", "metrics_listen"))
	for _, f := range findings(t, sh.want(0, "doctor --output json")) {
		assert.That(t, f.Name != "ports" || f.Status == "ok", "%+v", f)
	}
}

func TestDoctor_WarnsOfAServerOfAnotherConfigurationOnItsPort(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	sh.set("CARETAKER_LISTEN", sh.serving().address)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	sh.wantFault("warning", "ports", "listen: a caretaker with other databases or ports uses", "restart it if its configuration has changed")
}

func TestDoctor_BeforeMigrateSaysToRunIt(t *testing.T) {
	sh := newShell(t)
	sh.configured("main")
	sh.defined(oneKey)
	sh.set("CARETAKER_USE", "loose_foreign_keys")
	sh.want(1, "doctor", "the maintenance schema is missing or outdated", "→ run `caretaker migrate`", "1 error, 0 warnings")
}

func TestDoctor_WithoutUseAsksForTheLineAndForNoMigration(t *testing.T) {
	sh := alone(t)
	url, _ := shop(t)
	sh.set("CARETAKER_DATABASES_MAIN_URL", url)
	sh.set("CARETAKER_USE", "loose_foreign_keys")
	sh.want(0, "migrate")
	sh.set("CARETAKER_USE", "")
	out := sh.want(1, "doctor", "`use` is not set", "add the line `use: loose_foreign_keys`", "1 error, ")
	assert.Lacks(t, out, "caretaker migrate")
}
