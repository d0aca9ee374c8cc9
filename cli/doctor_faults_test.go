package cli_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// deceit makes functions that doctor calls answer otherwise, as they would on a server of another version or with another
// clock, and returns what the URL needs to come upon them.
func deceit(t *testing.T, sql *pgx.Conn, functions string) string {
	t.Helper()
	execute(t, sql, `CREATE SCHEMA deceit; SET search_path = deceit; `+functions+`; RESET search_path`)
	t.Cleanup(func() { execute(t, sql, `DROP SCHEMA deceit CASCADE`) })
	return "&search_path=public,deceit,pg_catalog"
}

const (
	ahead = `CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 minute' $$`
	// answers makes a setting of the server another one.
	answers = `CREATE FUNCTION current_setting(name text) RETURNS text LANGUAGE sql AS $$ SELECT CASE name WHEN 'KEY' THEN 'VALUE' ELSE pg_catalog.current_setting(name) END $$`
)

func answering(key, value string) string {
	return strings.NewReplacer("KEY", key, "VALUE", value).Replace(answers)
}

func TestDoctor_KnowsAServerThatIsNotAsItShouldBe(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	for functions, c := range map[string]fault{
		ahead: {status: "warning", where: "clock", problem: "its clock is 1m0s ahead of that of this machine", remedy: "let NTP set both clocks"},
		answering("server_version_num", "130014"): {status: "error", where: "version", problem: "caretaker is made for 14 to 18", remedy: "upgrade the server"},
		answering("server_version_num", "190000"): {status: "warning", where: "version", problem: "caretaker is made for 14 to 18", remedy: "look for a newer caretaker"},
		answering("TimeZone", "Asia/Kolkata"):     {status: "error", where: "clock", problem: "the session's TimeZone is Asia/Kolkata", remedy: "let the pooler pass on TimeZone"},
	} {
		t.Run(c.problem+c.status, func(t *testing.T) {
			sh := sh.sub(t)
			sh.set("CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString()+deceit(t, sql, functions))
			sh.wantFault(c)
		})
	}
}

func TestDoctor_ComparesTheClocksOfTheServers(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	ci := sh.configured("ci")
	sh.migrate()
	sh.set("CARETAKER_DATABASES_CI_URL", ci.Config().ConnString()+deceit(t, ci, strings.Replace(ahead, "+", "-", 1)))
	for _, f := range findings(t, sh.want(0, "doctor --output json")) {
		if f.Name == "clocks" {
			if f.Database != "ci" || f.Status != "warning" || !strings.HasPrefix(f.Problem, "its clock is 1m0s behind that of main") {
				t.Errorf("%+v", f)
			}
			return
		}
	}
	t.Error("nothing about the clocks")
}

func TestDoctor_AURLThatCannotBeOpenedIsAnError(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	sh.defined("issues: [{table: users, column: author_id, on_delete: async_delete}]")
	fault := fault{status: "error", where: "configuration", problem: "pool_max_conns", remedy: "correct the URL"}
	sh.set("CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString()+"&pool_max_conns=1")
	sh.wantFault(fault)
	// Nothing is compared with another database in its place.
	ci := sh.configured("ci")
	sh.set("CARETAKER_DATABASES_CI_URL", ci.Config().ConnString()+deceit(t, ci, ahead))
	sh.set("CARETAKER_DATABASES_SEC_URL", sh.configured("sec").Config().ConnString())
	sh.wantFault(fault)
	for _, f := range findings(t, sh.want(1, "doctor --output json")) {
		if f.Name == "clocks" && f.Status != "ok" {
			t.Errorf("%+v", f)
		}
	}
}

func TestDoctor_EachStateOfADatabaseHasARemedy(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	name := sql.Config().Database
	for _, c := range []fault{
		{
			name: "read-only", change: `ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`,
			undo: `SET default_transaction_read_only = off; ALTER DATABASE ` + name + ` RESET default_transaction_read_only`, status: "error", where: "connection",
			problem: "read-only", remedy: "default_transaction_read_only",
		},
		{
			name: "a short limit", change: `ALTER DATABASE ` + name + ` SET lock_timeout = '900ms'`, undo: `ALTER DATABASE ` + name + ` RESET lock_timeout`,
			status: "warning", where: "pooler", problem: "lock_timeout is under a second", remedy: " SET lock_timeout = 0",
		},
		{
			name: "lists as text", change: `ALTER DATABASE ` + name + ` SET array_nulls = off`, undo: `ALTER DATABASE ` + name + ` RESET array_nulls`,
			environment: [2]string{"CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString() + "&default_query_exec_mode=exec"},
			status:      "error", where: "pooler", problem: "array_nulls is off: behind a pooler, jobs break", remedy: " SET array_nulls = on",
		},
		{
			name: "bytes as text", change: `ALTER DATABASE ` + name + ` SET bytea_output = escape`, undo: `ALTER DATABASE ` + name + ` RESET bytea_output`,
			environment: [2]string{"CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString() + "&default_query_exec_mode=exec"},
			status:      "error", where: "pooler", problem: "bytea_output is escape: behind a pooler, jobs break", remedy: " SET bytea_output = hex",
		},
		{
			name: "an older schema", change: `UPDATE maintenance.schema_migrations SET is_applied = false WHERE version_id = (SELECT max(version_id) FROM maintenance.schema_migrations)`,
			undo:   `UPDATE maintenance.schema_migrations SET is_applied = true`,
			status: "error", where: "schema", problem: "needed is", remedy: "run caretaker migrate",
		},
		{
			name: "a newer schema", change: `INSERT INTO maintenance.schema_migrations_main (version_id, is_applied) VALUES (9999, true)`,
			undo:   `DELETE FROM maintenance.schema_migrations_main WHERE version_id = 9999`,
			status: "warning", where: "schema", problem: "is at 9999, this caretaker knows", remedy: "use the newer one",
		},
		{
			name: "no application", change: `ALTER SCHEMA public RENAME TO away`, undo: `ALTER SCHEMA away RENAME TO public`,
			status: "error", where: "application", problem: "no application schema", remedy: "search_path",
		},
		{
			name: "an address of another host", environment: [2]string{"CARETAKER_METRICS_LISTEN", "192.0.2.1:9999"},
			status: "error", where: "ports", problem: "192.0.2.1:9999", remedy: "correct metrics_listen (CARETAKER_METRICS_LISTEN)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sh := sh.sub(t)
			if c.environment[0] != "" {
				sh.set(c.environment[0], c.environment[1])
			}
			if c.change != "" {
				execute(t, sql, c.change)
				defer execute(t, sql, c.undo)
			}
			sh.wantFault(c)
		})
	}
}

func TestDoctor_NamesTheTriggerAndTheIndexThatADefinitionLacks(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	execute(t, sql, `CREATE TABLE parents (id bigint PRIMARY KEY); CREATE TABLE children (parent_id bigint)`)
	sh.defined("children: [{table: parents, column: parent_id, on_delete: async_delete}]")
	sh.wantFault(fault{status: "error", where: "definitions", problem: "trigger_missing: public.parents", remedy: "caretaker lfk track parents"})
	sh.wantFault(fault{status: "error", where: "definitions", problem: "fk_not_indexed: children.parent_id -> parents", remedy: "create an index on children (parent_id)"})
	sh.want(0, "lfk track parents")
	execute(t, sql, `CREATE INDEX ON children (parent_id)`)
	sh.want(0, "doctor", "0 errors")
}

func TestDoctor_LooksHowLongCertificatesAreValid(t *testing.T) {
	sh := newShell(t)
	sh.database("main", servicetest.Migrated("ci"))
	sh.set("CARETAKER_USE", "loose_foreign_keys")
	const day = 24 * time.Hour
	file := func(until time.Duration) (certificate, key string) { return certifiedUntil(t, "tls", until) }
	sh.set("CARETAKER_AUTH_CERTIFICATES", `{"alice": "operator"}`)
	join := func(files ...string) string {
		all := ""
		for _, name := range files {
			content := servicetest.Must(os.ReadFile(name))(t)
			all += string(content)
		}
		return saved(t, "bundle.pem", all)
	}
	good, goodKey := file(300 * day)
	ending, endingKey := file(13 * day)
	gone, goneKey := file(-day)
	early, earlyKey := file(366 * day)
	const server, clients = "the server's certificate (CN=tls)", "an authority of clients (CN=tls)"
	for name, c := range map[string]struct {
		certificate, key, authority string
		fault
	}{
		"good":               {good, goodKey, good, fault{}},
		"ending":             {ending, endingKey, good, fault{status: "warning", problem: server + " expires on", remedy: "tls.cert_file and tls.key_file"}},
		"expired":            {gone, goneKey, good, fault{status: "error", problem: server + " has expired on", remedy: "start the server again"}},
		"not yet valid":      {early, earlyKey, good, fault{status: "error", problem: server + " is valid from", remedy: "or set the clock"}},
		"behind the first":   {join(good, gone), goodKey, good, fault{}},
		"authority ending":   {good, goodKey, ending, fault{status: "warning", problem: clients + " expires on", remedy: "tls.client_ca_file"}},
		"authority expired":  {good, goodKey, gone, fault{status: "error", problem: clients + " has expired on", remedy: "tls.client_ca_file"}},
		"one of authorities": {good, goodKey, join(good, gone), fault{status: "warning", problem: clients + " has expired on", remedy: "tls.client_ca_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			sh := sh.sub(t)
			sh.set("CARETAKER_TLS_CERT_FILE", c.certificate)
			sh.set("CARETAKER_TLS_KEY_FILE", c.key)
			sh.set("CARETAKER_TLS_CLIENT_CA_FILE", c.authority)
			if c.status != "" {
				c.where = "certificate"
				sh.wantFault(c.fault)
				return
			}
			sh.want(0, "doctor", "certificate", "0 errors")
		})
	}
}

func TestFault_Doctor_KnowsPoolersThatLoseStatements(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	p := servicetest.Must(databases.Cluster(t).Pooler(t.Context(), 3))(t)
	defer func() { _ = p.Stop() }()
	sh.set("CARETAKER_DATABASES_MAIN_URL", p.PlainURL(sql.Config().Database))
	sh.wantFault(fault{status: "error", where: "pooler", problem: "may lose prepared statements", remedy: "add default_query_exec_mode=exec to databases.main.url"})
	sh.set("CARETAKER_DATABASES_MAIN_URL", p.URL(sql.Config().Database))
	sh.want(0, "doctor", "0 errors, 3 warnings")
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", p.PlainURL(sql.Config().Database))
	sh.wantFault(fault{status: "warning", where: "replica", problem: "behind a pooler that may lose prepared statements", remedy: "databases.main.replica_url"})
}

func TestFault_Doctor_KnowsWhichServerIsTheStandby(t *testing.T) {
	sh := newShell(t)
	cluster := sh.onItsOwnCluster()
	sql := sh.applied()
	name := sql.Config().Database
	standby := servicetest.Must(cluster.Standby(t.Context(), map[string]string{"max_standby_streaming_delay": "2s"}))(t)
	defer func() { _ = standby.Stop(context.Background()) }()
	t.Run("main is the standby", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_MAIN_URL", standby.URL(name))
		sh.wantFault(fault{status: "error", where: "connection", problem: "standby", remedy: "databases.main.url"})
	})
	t.Run("the replica is none", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", sql.Config().ConnString())
		sh.wantFault(fault{status: "warning", where: "replica", problem: "it is no standby", remedy: "hot standby of this database's server"})
	})
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", standby.URL(name))
	sh.wantFault(fault{status: "warning", where: "replica", problem: "cancels queries that are in the way of replay after 2s", remedy: "hot_standby_feedback = on"})
	conn := servicetest.Must(pgx.Connect(t.Context(), standby.URL(name)))(t)
	defer func() { _ = conn.Close(context.Background()) }()
	execute(t, conn, `ALTER SYSTEM SET hot_standby_feedback = on`)
	execute(t, conn, `SELECT pg_reload_conf()`)
	devdb.Eventually(t, "the standby keeps what is read", func() bool {
		_, out, _ := sh.caretaker("doctor")
		return strings.Contains(out, "0 errors, 3 warnings")
	})
	// A minute has passed since the last transaction that it has replayed: it is late once there is another one.
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", standby.URL(name)+deceit(t, sql, ahead))
	devdb.Eventually(t, "the standby has replayed all", func() bool {
		_, out, _ := sh.caretaker("doctor")
		return strings.Contains(out, "0 errors, 3 warnings")
	})
	execute(t, conn, `SELECT pg_wal_replay_pause()`)
	devdb.Eventually(t, "the standby pauses", func() bool {
		var state string
		err := conn.QueryRow(t.Context(), `SELECT pg_get_wal_replay_pause_state()`).Scan(&state)
		return err == nil && state == "paused"
	})
	execute(t, sql, `CREATE TABLE more (id bigint PRIMARY KEY)`)
	sh.wantFault(fault{status: "warning", where: "replica", problem: "late, the primary is read most of the time", remedy: "pg_stat_wal_receiver"})
	execute(t, conn, `SELECT pg_wal_replay_resume()`)
}

func TestDoctor_ConnectionsToOtherMachinesAreEncryptedAndVerified(t *testing.T) {
	t.Parallel()
	const key = "databases.ci.replica_url"
	for name, c := range map[string]struct {
		facts                   repo.ServerFacts
		status, problem, remedy string
	}{
		"local":     {repo.ServerFacts{Local: true}, "ok", "", ""},
		"plain":     {repo.ServerFacts{}, "warning", "not encrypted", "add sslmode=verify-full to " + key},
		"unchecked": {repo.ServerFacts{Encrypted: true}, "warning", "nobody checks the certificate", "sslrootcert, to " + key},
		"verified":  {repo.ServerFacts{Encrypted: true, Verified: true}, "ok", "", ""},
	} {
		status, problem, remedy := cli.Encryption(c.facts, key)
		if status != c.status || !strings.Contains(problem, c.problem) || !strings.Contains(remedy, c.remedy) {
			t.Errorf("%s: %s, %s, %s", name, status, problem, remedy)
		}
	}
}
