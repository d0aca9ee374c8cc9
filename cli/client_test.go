package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRun_ExitsWithTheOutcome(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	r := sh.serving()
	execute(t, sql, `INSERT INTO c (p_id) VALUES (1), (1), (2);
		INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	r.want(0, "run "+worker+" --dry-run --database main", "(dry run) succeeded", "c.p_id  p       async_delete  2")
	r.want(0, "run "+worker, "on main succeeded", "2 rows deleted", "c      2        0")

	execute(t, sql, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''secret''; END';
		CREATE TRIGGER no BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION no();
		INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 2)`)
	assert.Lacks(t, r.want(1, "run "+worker, "failed", "c.p_id -> p", "P0001"), "secret")
	execute(t, sql, `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 min'`)
	r.want(3, "run "+worker, "skipped", "held by somebody")
	r.want(2, "run nobody", `unknown worker "nobody"`)
	r.want(2, "run "+worker+" --database nowhere", `unknown database "nowhere"`)
}

func TestRun_IsSkippedWhilePausedAndWithoutDefinitions(t *testing.T) {
	sh, _ := newPrepared(t)
	r := sh.serving()
	r.want(3, "run "+worker, "skipped", "not configured")
	r.want(0, "status", worker, "not configured")
	r.want(0, "pause "+worker+" --reason repairs --for 1h", "paused", "repairs", "until")
	assert.Lacks(t, r.want(3, "run "+worker, "skipped", "repairs", "to end the pause, run `caretaker resume"), "ResumeWorker")
	r.want(0, "pause --all --reason incident", "*", "paused", "all workers are paused by", "incident", worker)
	r.want(3, "run "+worker, "skipped", "resume --all")
	sh.want(2, "run "+worker+" --no-wait x", "unexpected argument")
	r.want(0, "status", "all workers are paused by")
	r.want(0, "resume "+worker, "all workers are paused by")
	r.want(0, "resume *", "the global pause has ended")
	r.want(0, "resume --all", "no global pause is active")
	r.want(0, "resume "+worker, "not configured")
	r.want(2, "pause "+worker+" --reason r --for 9999h", "--for: must be from 1s to 8760h")
}

func TestRun_ADryRunWorksWhileTheWorkerIsPausedAndSaysSo(t *testing.T) {
	sh, _ := newPrepared(t)
	sh.defined(oneKey)
	r := sh.serving()
	r.want(0, "pause "+worker+" --reason repairs")
	r.want(0, "run "+worker+" --dry-run", "succeeded", "note    WORKER_PAUSED: "+worker+" is paused by ", "repairs): to end the pause, run `caretaker resume "+worker)
	r.want(3, "run "+worker, "skipped")
	r.want(0, "resume "+worker)
	assert.Lacks(t, r.want(0, "run "+worker+" --dry-run"), "PAUSED")
}

func TestStatus_IsShownAgainAndAgain(t *testing.T) {
	sh, _ := newPrepared(t)
	r := sh.serving()
	ctx, stop := context.WithCancel(t.Context())
	var out screen
	exit := make(chan int)
	go func() {
		exit <- cli.Run(ctx, []string{"status", "--watch=1ns", "--address", r.address}, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Env: sh.environment()})
	}()
	eventually(t, "the status is shown three times", &out, func() bool { return strings.Count(out.String(), "CONDITION") > 2 })
	stop()
	assert.Equal(t, <-exit, 0, "exit", &out)
	r.want(2, "runs --watch=x", "--watch")
}

func TestFlags_AreListedAndSet(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	r := sh.serving()
	r.want(0, "flags", "loose_foreign_keys_turbo_mode_main  off")
	r.want(0, "flags set loose_foreign_keys_turbo_mode_main on", "on")
	r.want(0, "flags", "loose_foreign_keys_turbo_mode_main  on")
	execute(t, sql, `INSERT INTO maintenance.feature_flags (name, enabled) VALUES ('zz', true), ('loose_foreign_keys_turbo_mode_zz', true)`)
	r.want(2, "flags set loose_foreign_keys_turbo_mode_mian on", `unknown flag "loose_foreign_keys_turbo_mode_mian": known flags are loose_foreign_keys_turbo_mode_main`+"\n")
	r.want(0, "flags set zz off", "off")
}

func TestClient_ListsAndSwitches(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	r := sh.serving()
	id := runID(t, document(t, r.want(0, "run "+worker+" --output json")))
	r.want(0, "runs -o wide", id, "request", "succeeded")
	assert.Lacks(t, r.want(0, "runs", id[:13]+"  "), id)
	r.want(0, "runs --state succeeded --worker "+worker, id[:13])
	r.want(0, "runs --since 1d", id[:13], "nothing to do")
	r.want(0, "runs --state failed", "no runs\n")
	r.want(0, "fires", "no fires\n")
	r.want(0, "jobs", "no jobs\n")
	r.want(0, "protected", "no protections\n")
	r.want(2, "run loose_foreign_keys", "did you mean "+worker+"?")
	assert.Lacks(t, r.want(0, "runs --state failed"), id[:13])
	r.want(0, "run "+worker)
	r.want(0, "runs --limit 1", "to see older runs, use a larger --limit or --all")
	for command, want := range map[string]int{"runs --all": 2, "runs --limit 2": 2, "runs --page-size 1": 1, "runs --limit 1": 1} {
		d := document(t, r.want(0, command+" -o json"))
		runs, _ := d["runs"].([]any)
		assert.That(t, len(runs) == want && (d["nextPageToken"] == "") == (want == 2), "%s: %v", command, d)
	}
	r.want(2, "runs --page-token x", "--page-token is invalid for this list with these filters")
	r.want(1, "status --tls", "does not use TLS: remove the TLS settings")
	execute(t, sql, `INSERT INTO maintenance.fires (worker, fire_time, outcome, run_id, claimed_by, started_at)
		VALUES ('`+worker+`', '2026-11-21 00:01Z', 'ran', '`+id+`', 'here', '2026-11-21 00:01:02.5Z'),
		('`+worker+`', '2026-11-21 00:02Z', 'missed', NULL, '', NULL)`)
	r.want(0, "fires", "2026-11-21 00:01:00  "+worker+"  ran      2.5s  here  "+id[:13], "2026-11-21 00:02:00  "+worker+"  missed   -     -     -")
	r.want(0, "fires "+worker+" --limit 1", "missed", "to see older fires, ")
	assert.Lacks(t, r.want(0, "fires --outcome missed"), id[:13])
	r.want(2, "fires nobody", `unknown worker "nobody"`)
	r.want(0, "watch "+id, "succeeded")
	r.want(0, "cancel "+id+" --reason repairs", "has already ended: succeeded")
	assert.Contains(t, r.want(0, "audit --limit 5"), "CancelRun", "repairs")
	r.want(2, "watch nope", "\"nope\" is neither a run ID nor the first 4 or more characters of a run ID: run `caretaker runs` to list the IDs")
	r.want(2, "cancel nope", `"nope" is neither a run ID nor`)
	r.want(2, "watch 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "run not found: run `caretaker runs` to list the IDs")
	for _, size := range []string{"0", "-1", "99999999999", "x"} {
		r.want(2, "runs --limit "+size, "a whole number above 0")
	}
	r.want(0, "watch "+id[:35], "succeeded")
	r.want(2, "watch "+id[:4], id[:4]+" matches several runs (", id, "): use more characters")
	started := runID(t, document(t, r.want(0, "run "+worker+" --no-wait -o json")))
	r.want(0, "watch "+started, "succeeded")
	r.want(0, "run "+worker+" --no-wait --dry-run", " has started. To follow it: caretaker watch "+
		"", "(server ")
	devdb.Eventually(t, "the dry run ends", func() bool { return !strings.Contains(r.want(0, "status"), "is running on main") })
	r.want(0, "cancel "+id+" -o yaml", "run:\n  id: "+id+"\n", "  leaseEpoch: \"1\"\n")
	r.want(0, "receipts", "no receipts")
	r.want(2, "receipts --run 0000", "--run: matches no recorded run: use the id of a run, or its first characters")
	out := r.want(0, "leases", worker+"/main  free   -")
	assert.That(t, strings.HasSuffix(out, " -\n"), "a free lease expires: %s", out)
	r.want(0, "status", "scheduler off", worker)
	r.want(0, "status --help", "up to 15 seconds old")
	r.want(0, "runs "+worker+" --limit 1", worker)
	r.want(2, "runs nobody", `unknown worker "nobody"`)
	r.want(2, "runs "+worker+" --worker other", "the argument WORKER and the flag --worker differ")
	r.want(0, "leases "+worker, worker+"/main")
	// The output as JSON is the answer.
	for command, key := range map[string]string{
		"status": "workers", "leases": "leases", "runs": "runs", "fires": "fires", "cancel " + id: "run", "flags": "flags",
		"pause " + worker + " --reason r": "worker", "resume " + worker: "worker", "flags set loose_foreign_keys_turbo_mode_main on": "flag",
	} {
		d := document(t, r.want(0, command+" --output json"))
		assert.That(t, d[key] != nil, "%s: got %v", command, d)
	}
	for line := range strings.Lines(r.want(0, "watch "+id+" --output json")) {
		d := document(t, line)
		assert.That(t, d["run"] != nil && d["sequence"] == "1", "watch: got %v", d)
	}
}

func TestClient_UsageIsExit2(t *testing.T) {
	sh := newShell(t)
	for _, command := range []string{
		"bogus", "run", "run a b", "status a b", "pause w", "pause --reason r", "pause w --all --reason r", "pause w x --reason r", "resume", "resume w --all", "pause w --reason r --for -1s", "pause w --reason r --for soon",
		"flags set a maybe", "flags set a", "status --output xml", "runs --state tired", "runs --bogus", "fires a b", "fires --outcome late", "watch", "serve now",
	} {
		sh.want(2, command, "caretaker: ")
	}
	for command, mistake := range map[string]string{
		"cancel":                                   "missing argument RUN",
		"lfk adopt":                                "specify TABLE.COLUMN, --list or --all",
		"runs --limit 2 --all":                     "use --limit or --all, not both",
		"status --watch 1s":                        `unexpected argument "1s" (did you mean --watch=1s?)`,
		"runs " + worker + " --watch 1s":           `unexpected argument "1s" (did you mean --watch=1s?)`,
		"jobs --watch 1s":                          `unexpected argument "1s" (did you mean --watch=1s?)`,
		"runs --since 1x":                          "neither a duration such as 24h nor a time such as",
		"rum":                                      `unknown command "rum" (did you mean run?)`,
		"help rum":                                 `unknown command "rum" (did you mean run?)`,
		"rum " + worker + " --address x:1":         `unknown command "rum" (did you mean run?)`,
		"lfk lnit --table x":                       `unknown command "lnit" (did you mean lint?)`,
		"completion fsh":                           `unknown command "fsh" (did you mean fish?)`,
		"status --watch=0s":                        "--watch: 0s is not above 0: use an interval such as 2s",
		"status --watch=-2s":                       "--watch: -2s is not above 0",
		"runs --watch=abc":                         `--watch: "abc" is not a duration such as 2s or 5m`,
		"status --watch=1x":                        `--watch: "1x" is not a duration such as 2s or 5m`,
		"lfk orphans --limit ten":                  `--limit: "ten" is not a whole number`,
		"plan user 99999999999999999999":           "99999999999999999999 is too large for an ID",
		"receipts --job 99999999999999999999":      "--job: 99999999999999999999 is too large",
		"protect user 7 --reason x --for 9999999h": "is not a positive duration of at most 290 years",
		"serve extra":                              `unexpected argument "extra" (usage: caretaker serve`,
		"run " + worker + " --database=":           "--database must not be empty",
		"run " + worker + " --dry-run=maybe":       `--dry-run: "maybe" is neither true nor false`,
		"runs --worker=":                           "--worker must not be empty",
		"dev --data x":                             "unknown flag: --data (did you mean --data-dir?)",
		"status --address=":                        "--address must not be empty",
		"jobs --kind=":                             "--kind must not be empty",
		"serve --config=":                          "--config must not be empty",
		"pause " + worker:                          "--reason REASON is required",
		"pause " + worker + " --reason=":           "--reason REASON is required",
		"lfk retry":                                "select the records with --id N, --table T or --all",
		"lfk retry --id x":                         `--id: "x" is not a whole number`,
		"lfk retry --table=":                       "--table must not be empty",
		"lfk lint --database=":                     "--database must not be empty",
		"lfk accept-absent --all --list":           "use one of CHILD",
		"status --address 50051":                   `--address: "50051" is not an address of the form HOST:PORT (port 0 to 65535), such as 127.0.0.1:50051`,
		"status --address http://127.0.0.1:1":      `"http://127.0.0.1:1" is not an address of the form HOST:PORT (port 0 to 65535), such as`,
	} {
		sh.want(2, command, mistake)
	}
	if code, _, errOut := sh.caretaker("status", ""); code != 2 || !strings.Contains(errOut, "argument 1 must not be empty") {
		t.Errorf("an empty argument: exit %d: %s", code, errOut)
	}
	if code, _, errOut := sh.caretaker(""); code != 2 || strings.Contains(errOut, "did you mean") {
		t.Errorf("an empty command: exit %d: %s", code, errOut)
	}
	sh.want(2, "fires a b", `unexpected argument "b" (usage: caretaker fires [WORKER]`)
	sh.want(0, "--help", "Client:")
	sh.want(0, "--version", "caretaker version ")
	sh.want(0, "", "Client:")
}

func TestClient_TakesTheAddressFromTheEnvironment(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_ADDRESS", "127.0.0.1:2")
	sh.want(1, "status", "no answer from 127.0.0.1:2:")
	sh.want(1, "status --address 127.0.0.1:1", "no answer from 127.0.0.1:1: start a server with `caretaker serve`")
	sh.want(0, "status --help", "CARETAKER_ADDRESS")
	sh.set("CARETAKER_ADDRESS", "bogus")
	sh.want(2, "status", `CARETAKER_ADDRESS: "bogus" is not an address of the form HOST:PORT (port 0 to 65535), such as 127.0.0.1:50051`)
	// Variables that are none are named.
	sh.set("CARETAKER_ADDRESS", "")
	sh.set("CARETAKER_ADDDRESS", "127.0.0.1:2")
	sh.set("CARETAKER_WORKERS_ENABLED", "false")
	sh.want(1, "status --address 127.0.0.1:1", "warning: CARETAKER_ADDDRESS", "did you mean "+
		"CARETAKER_ADDRESS?", "use CARETAKER_WORKERS_<NAME>_ENABLED")
}

func TestClient_SendsItsToken(t *testing.T) {
	sh, _ := newPrepared(t)
	token := filepath.Join(t.TempDir(), "token")
	assert.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	sh.set("CARETAKER_AUTH_TOKEN_FILE", token)
	r := sh.serving()
	r.want(1, "status", "a bearer token is required")
	r.want(0, "status --token-file "+token, worker)
	r.want(1, "status", "use --token-file, or --tls-cert and --tls-key")
	sh.want(0, "status --address "+strings.Replace(r.address, "127.0.0.1", "0.0.0.0", 1)+" --token-file "+token,
		"warning: the token is sent to 0.0.0.0:", " unencrypted: use --tls\n")
	sh.set("CARETAKER_CLIENT_TOKEN_FILE", token)
	r.want(0, "status", worker)
	sh.set("CARETAKER_CLIENT_TOKEN_FILE", "")
	sh.set("XDG_CONFIG_HOME", t.TempDir())
	profiles := sh.environment().ProfilesFile()
	assert.NoError(t, os.MkdirAll(filepath.Dir(profiles), 0o700))
	profile := "profiles: {here: {address: " + r.address + ", token_file: " + token + "}, wrong: {address: bogus}}"
	assert.NoError(t, os.WriteFile(profiles, []byte(profile), 0o600))
	sh.want(0, "status --profile here", worker)
	sh.want(1, "status --profile there", `profile "there" not found: known profiles are here, wrong`)
	sh.want(2, "status --profile wrong", `address in profile "wrong": "bogus" is not an address`)
}

// runID is the id in the answer of a run.
func runID(t *testing.T, answer map[string]any) string {
	t.Helper()
	run, _ := answer["run"].(map[string]any)
	id, ok := run["id"].(string)
	assert.Require(t, ok, "no run in %v", answer)
	return id
}

func TestReceipts_OfOtherDatabasesAreNamed(t *testing.T) {
	sh, _ := newPrepared(t)
	ci := sh.database("ci", servicetest.Migrated("ci"))
	sh.database("sec", servicetest.Migrated("ci"))
	execute(t, ci, `INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		VALUES (1, now(), 7, 'delete_user', 'p_ci_builds', 'deleted', 'delete user', 1, '', 'alice', 'x')`)
	sh.defined(oneKey)
	r := sh.serving()
	for _, database := range []string{"ci", "sec"} {
		r.want(0, "run "+worker+" --database "+database)
	}
	const elsewhere = "database main has no matching receipts: to show those of another database, use --database ci\n"
	for _, command := range []string{"receipts", "receipts --table p_ci_builds", "receipts list --job 7"} {
		code, out, notes := sh.caretaker(append(strings.Fields(command), "--address", r.address)...)
		assert.Equal(t, fmt.Sprint(code, " ", out+notes), "0 no receipts\n"+elsewhere, command)
	}
	r.want(0, "receipts --table p_ci_builds --database ci", "p_ci_builds")
	r.want(0, "receipts --table nope", "no matching receipts for table nope in database main",
		"showing database main: to show another database, use --database ci or sec\n")
}

func TestReceipts_AreVerifiedByTheHeadsThatWerePrinted(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.want(1, "receipts verify", "run `caretaker migrate` first")
	sh.migrate()
	sh.want(0, "receipts verify", "main: 0 receipts, the newest is 0: all unchanged\n")
	sh.want(0, "receipts head", "main 0 -\n")
	sh.want(0, "receipts verify -o json", `"findings": []`, `"unchecked": []`, `"moreFindings": 0`)
	execute(t, sql, `INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		VALUES (1, now(), 7, 'delete_user', 'members', 'deleted', 'delete user', 1, '', 'alice', 'x')`)
	sh.want(1, "receipts verify", "main: receipt 1 or the previous receipt was changed after it was written\n",
		"main: the head names receipt 0, but the last receipt is 1", "main: 1 receipt, the newest is "+
			"1: CHANGED OR MISSING\n")
	sh.want(1, "receipts verify --output json", `"receipts": 1`, `"findings": [`, `"database": "main"`)
	sh.want(2, "receipts verify --database sec", `database "sec" is not in the configuration`)
	for content, message := range map[string]string{
		"main 2 abcd\n":                      "",
		"":                                   "the file contains no heads",
		"main 2":                             `"main 2" does not have the form DATABASE NUMBER HASH [TIME]`,
		"main x y":                           `"x" is not a number`,
		"main 2 ab never":                    `"never" is not a time`,
		"main 2 abcd\nold 2 abcd":            `database "old" is not in the configuration: set databases.old.url, or remove the heads of this database from the file`,
		"main 2 abcd 2026-11-22T10:00:00Z\n": "",
		`{"heads": "main"}`:                  "cannot unmarshal",
		`{"heads": [{"database": "main", "sequence": 2, "hash": "abcd"}]}`: "",
	} {
		file := filepath.Join(t.TempDir(), "heads")
		assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		if message != "" {
			sh.want(2, "receipts verify --head "+file, message)
			continue
		}
		sh.want(1, "receipts verify --database all --head "+file, "receipt 2 of the given head is missing, "+
			"because the chain was truncated after receipt 1")
	}
	sh.want(2, "receipts verify --head /nowhere", "/nowhere")
	execute(t, sql, `DELETE FROM maintenance.receipts`)
	file := filepath.Join(t.TempDir(), "heads")
	assert.NoError(t, os.WriteFile(file, []byte(sh.want(0, "receipts head")), 0o600))
	sh.want(0, "receipts verify --head "+file)
	assert.Contains(t, sh.want(0, "receipts head --output json"), `"sequence": 0`)
	sh.want(2, "receipts lst", `unknown command "lst" (did you mean list?)`)
	sh.want(2, "receipts list --key 7", "--key requires --table")
	sh.want(2, "receipts list x", `unknown command "x"`)
}
