package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
)

// personal makes everything personal in the demo data recognisable: the text stands in no other column.
const personal = `
UPDATE users SET name = 'Veryprivate Name ' || id, username = 'veryprivate_login_' || id, email = 'veryprivate.' || id || '@mail.example';
UPDATE notes SET note = 'veryprivate words';
UPDATE issues SET title = 'veryprivate title'`

// everyLine has the keys that every line of a run or a job has, by its message.
var everyLine = map[string][]string{
	"run started":   {"worker", "run_id", "database", "trigger", "started_at", "trace_id"},
	"run finished":  {"worker", "run_id", "database", "trigger", "outcome", "over_limit", "duration_seconds", "tables", "trace_id"},
	"job finished":  {"kind", "job_id", "outcome", "reason", "attempt", "run_id", "duration_seconds", "trace_id"},
	"user migrated": {"worker", "run_id", "user_id", "tables", "trace_id"},
	"user refused":  {"worker", "run_id", "user_id", "reason", "error", "trace_id"},
	"range done":    {"worker", "run_id", "cursor", "examined", "scheduled", "trace_id"},
	"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user.": {"worker", "run_id", "placeholder_user_id", "trace_id"},
	"Group held, somebody has to look at it":                                                           {"worker", "run_id", "group_id", "reason", "trace_id"},
	"finished call":                                                                                    {"grpc.service", "grpc.method", "grpc.code", "trace_id"},
}

// countsSQL are the counts of the runs on record, by their ids.
const countsSQL = `SELECT id::text, array_agg(k.key) FROM maintenance.runs, jsonb_object_keys(counts) AS k (key) GROUP BY id`

// counts are the names of the counts of each run.
func counts(t *testing.T, conn *pgx.Conn) map[string][]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), countsSQL) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		t.Fatal(err)
	}
	found, id, keys := map[string][]string{}, "", []string{}
	if _, err := pgx.ForEachRow(rows, []any{&id, &keys}, func() error {
		found[id] = slices.Clone(keys)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLog_OfEveryWorkerIsOneObjectALineWithItsKeysAndNothingPersonal(t *testing.T) {
	sh := newShell(t)
	ctx := context.Background()
	url := databases.Clone(t, devdb.Template{Name: "demo_bare", Schema: "all", Prepare: func(ctx context.Context, url string) error {
		return devdb.LoadDemo(ctx, map[string]string{"main": url})
	}})
	sh.set("CARETAKER_DATABASES_MAIN_URL", url)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	execute(t, conn, personal)
	sh.defined(devdb.Definitions())
	sh.migrate()
	r := sh.serving()
	for _, w := range append(r.others(t), worker) {
		r.want(0, "run "+w+" --dry-run")
		r.want(0, "run "+w)
	}
	r.want(2, "jobs retry 999999")
	eventually(t, "a job ends", &r.log, func() bool { return strings.Contains(r.log.String(), `"msg":"job finished"`) })
	r.stop()
	<-r.exit
	seen, all := map[string]bool{}, counts(t, conn)
	for text := range strings.Lines(r.log.String()) {
		checkLine(t, text, seen, all)
	}
	for message := range everyLine {
		if !seen[message] {
			t.Errorf("nothing was logged as %q", message)
		}
	}
}

// checkLine fails the test unless a line is an object with the keys of its message, that of a run's end with its counts,
// and nothing personal.
func checkLine(t *testing.T, text string, seen map[string]bool, counts map[string][]string) {
	t.Helper()
	line := map[string]any{}
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	message := fmt.Sprint(line["msg"])
	seen[message] = true
	wanted := slices.Concat(everyLine[message], []string{"time", "level", "msg"})
	if message == "run finished" {
		of := counts[fmt.Sprint(line["run_id"])]
		if len(of) == 0 {
			t.Errorf("no run has the counts of %s", text)
		}
		wanted = append(wanted, of...)
	}
	for _, key := range wanted {
		if _, ok := line[key]; !ok {
			t.Errorf("%s is missing in %s", key, text)
		}
	}
	if line["level"] == "ERROR" && fmt.Sprint(line["stack"]) == "" {
		t.Errorf("no stack in %s", text)
	}
	if lower := strings.ToLower(text); strings.Contains(lower, "veryprivate") || strings.Contains(lower, "@mail") {
		t.Errorf("something personal in %s", text)
	}
}
