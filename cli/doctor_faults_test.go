package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// deceived is what a URL needs to come upon the functions of deceit.
const deceived = "&search_path=public,deceit,pg_catalog"

// deceit makes functions that doctor calls answer otherwise, as they would on a server of another version or with another
// clock.
func deceit(functions string) string {
	return `CREATE SCHEMA deceit; SET search_path = deceit; ` + functions + `; RESET search_path`
}

const (
	ahead = `CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 minute' $$`
	// answers makes a setting of the server another one.
	answers = `CREATE FUNCTION current_setting(name text) RETURNS text LANGUAGE sql AS $$ SELECT CASE name WHEN 'KEY' THEN 'VALUE' ELSE pg_catalog.current_setting(name) END $$`
)

func answering(key, value string) string {
	return strings.NewReplacer("KEY", key, "VALUE", value).Replace(answers)
}

func TestDoctor_ComparesTheClocksOfTheServers(t *testing.T) {
	sh := newShell(t)
	sh.applied()
	ci := sh.configured("ci")
	sh.migrate()
	execute(t, ci, deceit(strings.Replace(ahead, "+", "-", 1)))
	sh.set("CARETAKER_DATABASES_CI_URL", ci.Config().ConnString()+deceived)
	for _, f := range findings(t, sh.want(0, "doctor --output json")) {
		if f.Name == "clocks" {
			assert.That(t, f.Database == "ci" && f.Status == "warning" &&
				strings.HasPrefix(f.Problem, "the server's clock is 1m0s behind the clock of main"), "%+v", f)
			return
		}
	}
	t.Error("nothing about the clocks")
}

func TestDoctor_AURLThatCannotBeOpenedIsAnError(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	sh.defined("issues: [{table: users, column: author_id, on_delete: async_delete}]")
	sh.set("CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString()+"&pool_max_conns=1")
	sh.wantFault("error", "configuration", "pool_max_conns", "correct the URL")
	// Nothing is compared with another database in its place.
	ci := sh.configured("ci")
	execute(t, ci, deceit(ahead))
	sh.set("CARETAKER_DATABASES_CI_URL", ci.Config().ConnString()+deceived)
	sh.set("CARETAKER_DATABASES_SEC_URL", sh.configured("sec").Config().ConnString())
	sh.wantFault("error", "configuration", "pool_max_conns", "correct the URL")
	for _, f := range findings(t, sh.want(1, "doctor --output json")) {
		assert.That(t, f.Name != "clocks" || f.Status == "ok", "%+v", f)
	}
}

func TestDoctor_AShadowOfTheApplicationSchemaIsNoReasonForAnotherUse(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	execute(t, sql, "CREATE SCHEMA shadow")
	sh.set("CARETAKER_DATABASES_MAIN_URL", sql.Config().ConnString()+"&search_path=shadow,public")
	sh.wantFault("error", "application", "is in schema public, but schema shadow comes first", "put schema "+
		"public first in search_path")
}

func TestDoctor_SuggestsCommandsWithItsConfiguration(t *testing.T) {
	sh := newShell(t)
	sh.configured("main")
	file := filepath.Join(t.TempDir(), "a$1.yml")
	assert.NoError(t, os.WriteFile(file, []byte("use: loose_foreign_keys\n"), 0o600))
	words := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	assert.Contains(t, words(sh.want(1, "doctor --config "+file)), "run `caretaker migrate --config '"+file+"'`")
	assert.Contains(t, words(sh.want(1, "doctor")), "run `caretaker migrate`")
}

func TestDoctor_JoinsTheAddressesThatDoNotAnswer(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_DATABASES_MAIN_URL", "postgres://127.0.0.1:1,127.0.0.1:2/nowhere")
	for _, f := range findings(t, sh.want(1, "doctor -o json", "127.0.0.1:1", "127.0.0.1:2")) {
		assert.That(t, !strings.Contains(f.Problem, ":;") && !strings.Contains(f.Problem, ";  "), "%q", f.Problem)
	}
}

func TestDoctor_NamesTheTriggerAndTheIndexThatADefinitionLacks(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	execute(t, sql, `CREATE TABLE parents (id bigint PRIMARY KEY); CREATE TABLE children (parent_id bigint)`)
	sh.defined("children: [{table: parents, column: parent_id, on_delete: async_delete}]")
	sh.wantFault("error", "definitions", "trigger_missing: public.parents", "caretaker lfk track parents")
	sh.wantFault("error", "definitions", "fk_not_indexed: children.parent_id -> parents", "create an index on children (parent_id)")
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
			content := assert.Must(os.ReadFile(name))(t)
			all += string(content)
		}
		return saved(t, "bundle.pem", all)
	}
	good, goodKey := file(300 * day)
	ending, endingKey := file(13 * day)
	gone, goneKey := file(-day)
	early, earlyKey := file(366 * day)
	const server, clients = "the server's certificate (CN=tls)", "a certificate authority of the clients (CN=tls)"
	for name, c := range map[string]struct {
		certificate, key, authority string
		fault
	}{
		"good":               {good, goodKey, good, fault{}},
		"ending":             {ending, endingKey, good, fault{status: "warning", problem: server + " expires on", remedy: "tls.cert_file and its key in tls.key_file"}},
		"expired":            {gone, goneKey, good, fault{status: "error", problem: server + " expired on", remedy: "tls.key_file"}},
		"key of another":     {good, endingKey, good, fault{status: "error", problem: "private key does not match", remedy: "correct the named file"}},
		"not yet valid":      {early, earlyKey, good, fault{status: "error", problem: server + " is not valid before", remedy: "or correct the clock"}},
		"behind the first":   {join(good, gone), goodKey, good, fault{}},
		"authority ending":   {good, goodKey, ending, fault{status: "warning", problem: clients + " expires on", remedy: "tls.client_ca_file"}},
		"authority expired":  {good, goodKey, gone, fault{status: "error", problem: clients + " expired on", remedy: "tls.client_ca_file"}},
		"one of authorities": {good, goodKey, join(good, gone), fault{status: "warning", problem: clients + " expired on", remedy: "tls.client_ca_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			sh := sh.sub(t)
			sh.set("CARETAKER_TLS_CERT_FILE", c.certificate)
			sh.set("CARETAKER_TLS_KEY_FILE", c.key)
			sh.set("CARETAKER_TLS_CLIENT_CA_FILE", c.authority)
			if c.status != "" {
				sh.wantFault(c.status, "certificate", c.problem, c.remedy)
				return
			}
			sh.want(0, "doctor", "certificate", "0 errors")
		})
	}
}

func TestFault_Doctor_KnowsPoolersThatLoseStatements(t *testing.T) {
	sh := newShell(t)
	sql := sh.applied()
	p := assert.Must(databases.Cluster(t).Pooler(t.Context(), 3))(t)
	defer func() { _ = p.Stop() }()
	sh.set("CARETAKER_DATABASES_MAIN_URL", p.PlainURL(sql.Config().Database))
	sh.wantFault("error", "pooler", "may lose prepared statements", "add default_query_exec_mode=exec to databases.main.url")
	sh.set("CARETAKER_DATABASES_MAIN_URL", p.URL(sql.Config().Database))
	sh.want(0, "doctor", "0 errors, 3 warnings")
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", p.PlainURL(sql.Config().Database))
	sh.wantFault("warning", "replica", "its pooler may lose prepared statements", "databases.main.replica_url")
}

func TestFault_Doctor_KnowsWhichServerIsTheStandby(t *testing.T) {
	sh := newShell(t)
	cluster := sh.onItsOwnCluster()
	sql := sh.applied()
	name := sql.Config().Database
	standby := assert.Must(cluster.Standby(t.Context(), map[string]string{"max_standby_streaming_delay": "2s"}))(t)
	defer func() { _ = standby.Stop(context.Background()) }()
	t.Run("main is the standby", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_MAIN_URL", standby.URL(name))
		sh.wantFault("error", "connection", "standby", "databases.main.url")
	})
	t.Run("the replica is none", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", sql.Config().ConnString())
		sh.wantFault("warning", "replica", "the server is not a standby", "hot standby of this database's server")
	})
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", standby.URL(name))
	sh.wantFault("warning", "replica", "cancels queries that delay its replay by more than 2s", "hot_standby_feedback = on")
	conn := servicetest.Connect(t, standby.URL(name))
	execute(t, conn, `ALTER SYSTEM SET hot_standby_feedback = on`)
	execute(t, conn, `SELECT pg_reload_conf()`)
	devdb.Eventually(t, "the standby keeps what is read", func() bool {
		_, out, _ := sh.caretaker("doctor")
		return strings.Contains(out, "0 errors, 3 warnings")
	})
	execute(t, sql, deceit(ahead))
	// A minute has passed since the last transaction that it has replayed: it is late once there is another one.
	sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", standby.URL(name)+deceived)
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
	sh.wantFault("warning", "replica", "so caretaker mostly reads from the "+
		"primary", "pg_stat_wal_receiver")
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
		"unchecked": {repo.ServerFacts{Encrypted: true}, "warning", "the certificate of the server is not verified", "sslrootcert to " + key},
		"verified":  {repo.ServerFacts{Encrypted: true, Verified: true}, "ok", "", ""},
	} {
		status, problem, remedy := cli.Encryption(c.facts, key)
		assert.That(t, status == c.status && strings.Contains(problem, c.problem) &&
			strings.Contains(remedy, c.remedy), "%s: %s, %s, %s", name, status, problem, remedy)
	}
}
