package cli_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLfk_FromAnEmptyDatabaseToACleanLint(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.defined("c: [{table: p, column: p_id, on_delete: async_delete}]")
	sh.want(1, "lfk install", "run `caretaker migrate` first")
	for _, command := range []string{"lfk dead", "lfk lint"} {
		assert.Equal(t, sh.want(1, command), "", command)
	}
	sh.migrate()
	execute(t, sql, "CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint)")
	sh.want(1, "lfk lint", "error    queue_missing  main  public.loose_foreign_keys_deleted_records: database main has no queue: run `caretaker lfk install --database main`")
	sh.want(0, "lfk install", "main: installed")
	sh.want(0, "lfk install", "main: managed by caretaker")
	sh.want(1, "lfk lint", "error    trigger_missing  main  public.p", "error    fk_not_indexed  main  c.p_id -> p", "2 errors, 0 warnings")
	sh.want(0, "lfk track p", "main: created trigger p_loose_fk_trigger on public.p")
	sh.want(0, "lfk track p p", "main: public.p: already tracked\nmain: public.p: already tracked\n")
	execute(t, sql, "CREATE INDEX ON c (p_id)")
	assert.Equal(t, sh.want(0, "lfk lint"), "0 errors, 0 warnings\n")
	execute(t, sql, "ALTER TABLE p ENABLE TRIGGER p_loose_fk_trigger")
	sh.want(0, "lfk lint", "warning  trigger_not_always  main  public.p", "0 errors, 1 warning\n")
	const orphans = "without the triggers, deletions from p leave orphaned rows (c.p_id -> p)"
	sh.want(1, "lfk untrack p", "nothing was dropped, because "+orphans+": to drop the triggers, run this command again with --yes\n")
	sh.want(0, "lfk untrack p --yes", "main: dropped trigger p_loose_fk_trigger on public.p", "warning: "+orphans+". caretaker still processes pending records")
	sh.want(1, "lfk untrack p", "caretaker: main: public.p is not tracked")
}

func TestLfk_OutputJSONIsOneDocument(t *testing.T) {
	sh := newShell(t)
	sql := sh.database("main", servicetest.Migrated(""))
	sh.defined("c: [{table: p, column: p_id, on_delete: async_delete}]\ngone: [{table: p, column: p_id, on_delete: async_delete}]")
	execute(t, sql, `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint);
		INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at, dead_at)
		VALUES ('public.p', 7, 'c.p_id -> p', 'P0001', 'no', 10, '2026-01-01 00:00Z', '2026-01-02 00:00Z')`)
	for _, c := range []struct {
		command string
		code    int
		want    string
	}{
		{"install", 0, `{"databases": [{"database": "main", "result": "installed"}]}`},
		{"lint", 1, `{"findings": [
			{"severity": "error", "code": "fk_not_indexed", "database": "main", "object": "c.p_id -> p",
			 "advice": "no index on c (p_id), so every statement reads the whole table: create an index on c (p_id)"},
			{"severity": "error", "code": "trigger_missing", "database": "main", "object": "public.p",
			 "advice": "deletions from public.p are not recorded: run ` + "`caretaker lfk track p --database main`" + ` (add --column if child rows refer to a column other than id)"},
			{"severity": "error", "code": "child_missing", "database": "", "object": "gone.p_id -> p",
			 "advice": "gone is not in any configured database, so records of p are held: configure the database that contains the table, or run ` + "`caretaker lfk accept-absent gone`" + `"}],
			"errors": 3, "warnings": 0}`},
		{"track p", 0, `{"database": "main", "table": "public.p", "column": "id", "triggers": ["p_loose_fk_trigger on public.p"]}`},
		{"track p", 0, `{"database": "main", "table": "public.p", "column": "id", "triggers": []}`},
		{"untrack p --yes", 0, `{"databases": [{"database": "main", "table": "public.p", "triggers": ["p_loose_fk_trigger on public.p"], "unfed": ["c.p_id -> p", "gone.p_id -> p"]}]}`},
		{"dead", 0, `{"dead_records": [{"database": "main", "id": 1, "table": "public.p", "key": 7, "definition": "c.p_id -> p", "sqlstate": "P0001",
			"message": "no", "failures": 10, "recorded_at": "2026-01-01T00:00:00Z", "dead_at": "2026-01-02T00:00:00Z"}]}`},
		{"dead --table c", 0, `{"dead_records": []}`},
		{"retry --id 1", 0, `{"databases": [{"database": "main", "records": 1}]}`},
		{"retry --all", 1, `{"databases": []}`},
		{"accept-absent --all", 0, `{"accepted": [{"child": "gone", "definitions": ["gone.p_id -> p"], "accepted_before": false}]}`},
		{"accept-absent gone", 0, `{"accepted": [{"child": "gone", "definitions": ["gone.p_id -> p"], "accepted_before": true}]}`},
		{"accept-absent --revoke gone", 0, `{"revoked": ["gone"]}`},
		{"accept-absent --list", 0, `{"absent_children": []}`},
	} {
		out := sh.want(c.code, "lfk "+c.command+" --output json")
		var got, expected any
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Errorf("%s: %v: %s", c.command, err, out)
		}
		assert.NoError(t, json.Unmarshal([]byte(c.want), &expected))
		assert.That(t, reflect.DeepEqual(got, expected), "%s: got %s\nwant %s", c.command, out, c.want)
	}
}

func TestLfk_DeadAndFailingRecordsAreListedAndRetried(t *testing.T) {
	sh := newShell(t)
	sql := sh.database("main", servicetest.Migrated(""))
	sh.want(0, "lfk dead --failing", "no failing records")
	sh.want(0, "lfk install")
	sh.want(0, "lfk dead", "no dead records")
	execute(t, sql, `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at, dead_at)
		SELECT 'public.p', n, 'c.p_id -> p', 'P0001', E'no,\nnever', 10, '2026-01-01 01:02:03Z', '2026-01-02 01:02:03Z' FROM generate_series(7, 9) n`)
	sh.want(0, "lfk dead", "DATABASE  ID  TABLE     KEY  DEFINITION   SQLSTATE  FAILURES  RECORDED (UTC)       DEAD SINCE (UTC)     MESSAGE\n",
		"main      1   public.p  7    c.p_id -> p  P0001     10        2026-01-01 01:02:03  2026-01-02 01:02:03  no, never\n")
	sh.want(2, "lfk retry --id 9", "unknown dead record 9: run `caretaker lfk dead` to list the dead records")
	sh.want(2, "lfk retry --table nowhere", "unknown table nowhere in main")
	sh.want(0, "lfk retry --id 2", "main: 1 record queued again")
	sh.want(0, "lfk retry --table p", "main: 2 records queued again")
	execute(t, sql, "CREATE TABLE p (id bigint PRIMARY KEY); TRUNCATE loose_foreign_keys_deleted_records RESTART IDENTITY")
	for _, records := range []string{"--all", "--table p"} {
		sh.want(1, "lfk retry "+records, "no dead record matches: run `caretaker lfk dead` to list the dead records")
	}
	// Failing ones are listed with their next try.
	sh.want(0, "lfk dead --failing", "no failing records")
	execute(t, sql, `WITH q AS (
			INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
			VALUES ('public.p', 7, '2126-01-01 01:02:03Z'), ('public.p', 8, '2026-01-01 01:02:03Z'), ('other.q', 9, now()) RETURNING partition, id)
		INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate, failed_at)
		SELECT partition, id, 3, 4, 'c.p_id -> p', CASE id WHEN 1 THEN 'P0001' ELSE '' END, '2026-01-02 01:02:03Z' FROM q`)
	sh.want(0, "lfk dead --failing --table p", "DATABASE  ID  TABLE     KEY  DEFINITION   CAUSE  FAILURES  FAILED (UTC)         NEXT TRY (UTC)\n",
		"main      1   public.p  7    c.p_id -> p  P0001  4         2026-01-02 01:02:03  2126-01-01 01:02:03\n",
		"main      2   public.p  8    c.p_id -> p  -      4         2026-01-02 01:02:03  now\n")
	sh.want(1, "lfk retry --table p", "failing records are retried automatically: run `caretaker lfk dead "+
		"--failing` to see the next attempts")
	sh.want(0, "lfk dead --failing", "other.q")
	sh.want(0, "lfk dead --failing --table other.q --output json", `"key": 9`, `"setbacks": 4`, `"next_try": "`)
}

func TestLfk_AbsentChildrenAreAcceptedListedAndRevoked(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.want(1, "lfk accept-absent --list", "run `caretaker migrate` first")
	sh.migrate()
	sh.want(1, "lfk accept-absent --all", "no definitions file configured: set workers.loose_foreign_keys_cleanup.definitions")
	sh.defined("a: [{table: p, column: p_id, on_delete: async_delete}]\nb: [{table: p, column: p_id, on_delete: async_delete}]\n" +
		"c: [{table: p, column: p_id, on_delete: async_delete}]")
	execute(t, sql, "CREATE TABLE c (p_id bigint)")
	sh.want(0, "lfk accept-absent --list", "no child table is accepted as absent\n")
	sh.want(2, "lfk accept-absent a x", "no definition has the child table x: run `caretaker lfk lint` to list "+
		"the missing child tables")
	sh.want(1, "lfk accept-absent a c", "c cannot be accepted as absent, because the table exists in main")
	assert.Equal(t, sh.want(0, "lfk accept-absent a"), "accepted as absent: a (a.p_id -> p)\n")
	assert.Equal(t, sh.want(0, "lfk accept-absent --all"), "accepted as absent: b (b.p_id -> p)\n")
	sh.want(0, "lfk accept-absent --all", "nothing new to accept\n")
	sh.want(0, "lfk accept-absent a", "already accepted as absent: a (a.p_id -> p)\n")
	execute(t, sql, "UPDATE maintenance.absent_children SET accepted_at = '2026-01-02 03:04:05Z', accepted_by = 'me@here'")
	sh.want(0, "lfk accept-absent --list", "CHILD  DATABASE  ACCEPTED (UTC)       BY\na      -         2026-01-02 03:04:05  me@here\nb ")
	sh.want(2, "lfk accept-absent --revoke a x", "x is not accepted as absent: run `caretaker lfk accept-absent --list` to list the child tables accepted as absent")
	sh.want(0, "lfk accept-absent --revoke a", "no longer accepted as absent: a\n")
	sh.set("CARETAKER_DATABASES_CI_URL", "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2")
	sh.want(1, "lfk accept-absent a", "cannot check which tables are absent: ", "ci: unreachable")
	sh.want(0, "lfk accept-absent --list", "CHILD  DATABASE  ACCEPTED ")
}

func TestLfk_MistakesOfUsageExitWith2(t *testing.T) {
	sh := newShell(t)
	sh.database("main", servicetest.Migrated(""))
	for _, command := range []string{
		"lfk frobnicate", "lfk lint extra", "lfk track", "lfk track a b", "lfk untrack", "lfk retry", "lfk retry --id x", "lfk retry --id 1 --all",
		"lfk accept-absent", "lfk accept-absent c --all", "lfk accept-absent c --list", "lfk accept-absent --revoke", "lfk accept-absent --list --revoke c",
		"lfk accept-absent --all --database main", "lfk retry --all=false", "lfk retry --table=", "lfk install --database nowhere", "lfk lint --output xml", "lfk track p --nothing",
	} {
		sh.want(2, command)
	}
	sh.want(2, "lfk install --database nowhere", `unknown database "nowhere": the configured databases are main`)
	sh.want(2, "lfk install --database mian", `unknown database "mian": the configured databases are main (did you mean main?)`)
	sh.want(2, "doctor --grants --database mian", `"mian" is not in the configuration: the configured databases are main (did you mean main?)`)
	assert.Lacks(t, sh.want(0, "lfk accept-absent --help"), "--database")
	sh.want(0, "lfk lint --help", "--database")
	// Malformed definitions are fatal where they are needed.
	file := sh.defined("c: [{table: p, column: p_id, on_delete: async_drop}]\nd: 1")
	for _, command := range []string{"lint", "accept-absent --all", "orphans", "adopt c.p_id"} {
		sh.want(1, "lfk "+command, file+":1: c[0].on_delete: is the string \"async_drop\": use one of "+
			"async_delete, async_nullify, update_column_to\n",
			file+":2: d: is the integer \"1\"")
	}
}

func TestLfk_RefusalsExitWith1AndSayWhy(t *testing.T) {
	sh := newShell(t)
	main, ci := sh.configured("main"), sh.configured("ci")
	sh.migrate()
	sh.want(0, "lfk install", "main: installed\nci: installed\n")
	execute(t, main, "CREATE TABLE p (id numeric PRIMARY KEY); CREATE TABLE q (id int PRIMARY KEY); CREATE TABLE "+strings.Repeat("n", 50)+" (id int PRIMARY KEY)")
	execute(t, ci, "CREATE TABLE q (id int PRIMARY KEY, code int); CREATE TABLE n (id int PRIMARY KEY)")
	for _, command := range []string{"track", "untrack"} {
		sh.want(2, "lfk "+command+" nowhere", "unknown table nowhere in main, ci")
	}
	sh.defined("{}")
	for command, words := range map[string]string{
		"dead --table nowhere": "unknown table nowhere in main, ci", "dead --failing --table nowhere": "unknown table nowhere in main, ci",
		"track n --column nix --database ci": "public.n has no column nix", "track n --column id,id --database ci": "the column id is specified twice",
		"track n --column a,b,c,d,e --database ci": "the key (a, b, c, d, e) of public.n has too many columns: specify at most 4 columns",
		"track a.b.c": "has more than one dot", "untrack a.b.c": "has more than one dot", `dead --table "p`: "a quote that is not closed", `track "p`: "a quote that is not closed",
		"adopt n.nix --plan": "unknown foreign key n.nix", "revert n.nix": "caretaker has never adopted this " +
			"foreign key",
		"adopt n.id --on-delete drop": "--on-delete drop: use",
	} {
		sh.want(2, "lfk "+command, words)
	}
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", "")
	// A record outlives its table.
	execute(t, main, `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		VALUES ('public.dropped', 1, 'c.p_id -> dropped', 'P0001', '', 10, now())`)
	sh.want(0, "lfk dead --table dropped", "public.dropped")
	sh.want(0, "lfk dead --table n", "no dead records")
	sh.want(1, "lfk untrack p", "main: public.p is not tracked")
	sh.want(1, "lfk track p", "caretaker: main: the key id of public.p is of type numeric")
	sh.want(1, "lfk track q", "q exists in main, ci: select a database with --database")
	sh.want(0, "lfk track q --database ci", "ci: created trigger q_loose_fk_trigger on public.q")
	sh.want(1, "lfk track q --database ci --column code", "code of public.q is not a unique key",
		"(valid, not partial, not deferrable), or specify a unique key with --column\n")
	sh.want(1, "lfk track "+strings.Repeat("n", 50), strings.Repeat("n", 50)+"_loose_fk_trigger would have 67 bytes")
	sh.want(1, "lfk lint", "no definitions file configured: set workers.loose_foreign_keys_cleanup.definitions")
	sh.set("CARETAKER_DATABASES_CI_URL", "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2")
	sh.want(1, "lfk install", "main: managed by caretaker", "ci: unreachable")
	sh.set("CARETAKER_DATABASES_MAIN_URL", "")
	sh.want(1, "lfk install", "databases.main.url is required")
}

func TestLfk_LintKnowsThatARoundPassesNoDatabaseOver(t *testing.T) {
	sh := newShell(t)
	execute(t, sh.configured("main"), "CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id)")
	sh.configured("ci")
	sh.defined("c: [{table: p, column: p_id, on_delete: async_delete}]")
	sh.migrate()
	sh.want(0, "lfk install")
	sh.want(0, "lfk track p")
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_SCHEDULE", "*/2 * * * *")
	sh.want(0, "lfk lint", "warning  schedule_starves_database  ci", "0 errors, 1 warning\n")
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_ROTATION", "all")
	assert.Equal(t, sh.want(0, "lfk lint"), "0 errors, 0 warnings\n")
	sh.set("CARETAKER_DATABASES_CI_URL", "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2")
	code, out, errOut := sh.caretaker("lfk", "lint")
	if code != 1 || out != "0 errors, 0 warnings; not checked: ci\n" || strings.Count(errOut, "connection refused") != 1 {
		t.Errorf("a silent database: exit %d\n%s%s", code, out, errOut)
	}
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_ROTATION", "hour")
	sh.want(1, "lfk lint", "LOOSE_FOREIGN_KEYS_CLEANUP_ROTATION: \"hour\" is not one of minute, all")
}
