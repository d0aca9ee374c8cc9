package cli_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/texts"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// personal makes everything personal in the demo data recognisable: the text stands in no other column.
const personal = `
UPDATE users SET name = 'Veryprivate Name ' || id, username = 'veryprivate_login_' || id, email = 'veryprivate.' || id || '@mail.example';
UPDATE notes SET note = 'veryprivate words';
UPDATE issues SET title = 'veryprivate title'`

// everyLine has the keys that every line of a run or a job has, by its message.
var everyLine = map[string][]string{
	"run started":               {"worker", "run_id", "database", "trigger", "started_at", "trace_id"},
	"run finished":              {"worker", "run_id", "database", "trigger", "outcome", "over_limit", "duration_seconds", "tables", "trace_id"},
	"job finished":              {"kind", "job_id", "outcome", "reason", "attempt", "run_id", "duration_seconds", "trace_id"},
	"user migrated and deleted": {"worker", "run_id", "user_id", "tables", "trace_id"},
	"user deletion refused":     {"worker", "run_id", "user_id", "reason", "error", "trace_id"},
	"range of bots checked":     {"worker", "run_id", "cursor", "examined", "scheduled", "trace_id"},
	"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user.": {"worker", "run_id", "placeholder_user_id", "trace_id"},
	"group needs attention": {"worker", "run_id", "group_id", "reason", "trace_id"},
	"finished call":         {"grpc.service", "grpc.method", "grpc.code", "trace_id"},
}

// countsSQL are the counts of the runs on record, by their ids.
const countsSQL = `SELECT id::text, array_agg(k.key) FROM maintenance.runs, jsonb_object_keys(counts) AS k (key) GROUP BY id`

// counts are the names of the counts of each run.
func counts(t *testing.T, conn *pgx.Conn) map[string][]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), countsSQL) //nolint:rowserrcheck // ForEachRow returns it
	assert.NoError(t, err)
	found, id, keys := map[string][]string{}, "", []string{}
	assert.Must(pgx.ForEachRow(rows, []any{&id, &keys}, func() error {
		found[id] = slices.Clone(keys)
		return nil
	}))(t)
	return found
}

// demo makes the databases of the demo, with everything personal in them recognisable.
func (sh *shell) demo() (main *pgx.Conn) {
	sh.t.Helper()
	for _, name := range []string{"main", "ci", "sec"} {
		conn := sh.database(name, devdb.DemoTemplate(name))
		if name == "main" {
			main = conn
		}
	}
	execute(sh.t, main, personal)
	sh.defined(devdb.Definitions())
	sh.migrate()
	return main
}

func TestServe_ThatHasRunAllWorkersIsToldInTheLogAndInTheMetrics(t *testing.T) {
	sh := newShell(t)
	conn := sh.demo()
	sh.apart = true
	r := sh.serving()
	for _, w := range append(r.others(t), worker+" --database main", worker+" --database ci", worker+" --database sec") {
		r.want(0, "run "+w+" --dry-run")
		r.want(0, "run "+w)
	}
	r.want(2, "jobs retry 999999")
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, args, max_attempts, queue, state)
		VALUES ('continue_inactive_token_deletion', '{"pass_id": "00000000-0000-7000-8000-000000000000"}', 25, 'default', 'available')`)
	eventually(t, "all jobs have ended", &r.log, func() bool {
		execute(t, conn, `UPDATE maintenance.river_job SET scheduled_at = now(), state = 'available' WHERE state IN ('scheduled', 'retryable')`)
		return column(t, conn, `SELECT count(*)::text FROM maintenance.river_job WHERE state IN ('available', 'running', 'scheduled')`) == "0"
	})
	r.want(0, "run ghost_user_migration")
	for _, command := range []string{"status", "leases", "runs", "fires", "jobs", "flags", "pause --all --reason r", "resume --all"} {
		r.want(0, command)
	}
	t.Run("metrics are all documented with their labels", r.wantDocumented)
	// The status of some calls is another one than that of most.
	r.callAll(t)
	t.Run("metrics are few series", r.wantFewSeries)
	r.stop()
	assert.Equal(t, <-r.exit, 0, "exit", &r.log)
	t.Run("every line of the log is one object with its keys and nothing personal", func(t *testing.T) {
		seen, all := map[string]bool{}, counts(t, conn)
		for text := range strings.Lines(r.log.String()) {
			checkLine(t, text, seen, all)
		}
		for message := range everyLine {
			assert.That(t, seen[message], "nothing was logged as %q", message)
		}
	})
}

// checkLine fails the test unless a line is an object with the keys of its message and nothing
// personal. The line of a run's end has its counts.
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
		assert.That(t, len(of) != 0, "no run has the counts of %s", text)
		wanted = append(wanted, of...)
	}
	for _, key := range wanted {
		if _, ok := line[key]; !ok {
			t.Errorf("%s is missing in %s", key, text)
		}
	}
	assert.That(t, line["level"] != "ERROR" || fmt.Sprint(line["stack"]) != "", "no stack in %s", text)
	if lower := strings.ToLower(text); strings.Contains(lower, "veryprivate") || strings.Contains(lower, "@mail") {
		t.Errorf("something personal in %s", text)
	}
}

// mostSeries is how many a default server with three databases may show for each of its workers.
const mostSeries = 120

// callAll makes every call of the API with an empty request: some of them are answered, some refused.
func (r *running) callAll(t *testing.T) {
	t.Helper()
	conn := assert.Must(grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = conn.Close() }()
	of := maintenancev1.MaintenanceService_ServiceDesc
	for _, method := range of.Methods {
		_ = conn.Invoke(t.Context(), "/"+of.ServiceName+"/"+method.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
	}
}

// series are how many series each metric has.
func (r *running) series(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	for line := range strings.Lines(r.scrape(t)) {
		if name := line[:strings.IndexAny(line, "{ ")]; name != "#" {
			found[name]++
		}
	}
	return found
}

func (r *running) wantFewSeries(t *testing.T) {
	found := r.series(t)
	sum := 0
	for _, n := range found {
		sum += n
	}
	most := mostSeries * len(servicetest.Workers())
	if sum <= most {
		return
	}
	t.Errorf("%d series, want %d at most", sum, most)
	for _, name := range slices.SortedFunc(maps.Keys(found), func(a, b string) int { return cmp.Compare(found[b], found[a]) }) {
		t.Logf("%4d %s", found[name], name)
	}
}

// scrape reads the metrics of a server.
func (r *running) scrape(t *testing.T) string {
	t.Helper()
	return pageOf(t, "http://"+r.log.field(t, "serving", "metrics_listen")+"/metrics")
}

// scraped are the metrics of a server: the labels of each by its name, without those of buckets.
func scraped(t *testing.T, r *running) map[string][]string {
	t.Helper()
	content := r.scrape(t)
	histograms := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) histogram$`).FindAllStringSubmatch(content, -1) {
		histograms[m[1]] = true
	}
	found := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`).FindAllStringSubmatch(content, -1) {
		name, labels := m[1], []string{}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && histograms[base] {
				name = base
			}
		}
		for _, l := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		found[name] = labels
	}
	return found
}

// documented are the metrics of docs/reference/metrics.md: their labels by their names. And the
// prefixes of those of libraries.
func documented(t *testing.T) (metrics map[string][]string, prefixes []string) {
	t.Helper()
	content := assert.Must(os.ReadFile("../docs/reference/metrics.md"))(t)
	metrics = map[string][]string{}
	quoted := regexp.MustCompile("`([a-z_]+)`")
	for line := range strings.Lines(string(content)) {
		cells := strings.Split(line, " | ")
		switch {
		case len(cells) == 4 && strings.HasPrefix(line, "| `maintenance_"):
			labels := []string{}
			for _, l := range quoted.FindAllStringSubmatch(cells[2], -1) {
				labels = append(labels, l[1])
			}
			slices.Sort(labels)
			metrics[quoted.FindStringSubmatch(cells[0])[1]] = labels
		case len(cells) == 2:
			for _, p := range quoted.FindAllStringSubmatch(cells[0], -1) {
				prefixes = append(prefixes, p[1])
			}
		}
	}
	return metrics, prefixes
}

func (r *running) wantDocumented(t *testing.T) {
	found := scraped(t, r)
	listed, prefixes := documented(t)
	for name, labels := range found {
		if !strings.HasPrefix(name, "maintenance_") {
			if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
				t.Errorf("%s has no prefix that docs/reference/metrics.md names", name)
			}
			continue
		}
		want, ok := listed[name]
		assert.That(t, ok && slices.Equal(labels, want),
			"%s has the labels %q, docs/reference/metrics.md says %q (%t)", name, labels, want, ok)
	}
	for name := range listed {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is in docs/reference/metrics.md, but the server has no such metric", name)
		}
	}
	assert.That(t, len(found) >= 40, "only %d metrics found", len(found))
}

func TestLog_EveryMessageIsInTheDocuments(t *testing.T) {
	t.Parallel()
	content := assert.Must(os.ReadFile("../docs/reference/log-messages.md"))(t)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(content), -1) {
		documented[strings.Join(strings.Fields(m[1]), " ")] = true
	}
	var all texts.Texts
	for _, pattern := range []string{"../*", "../service/*", "../service/*/*"} {
		for _, folder := range assert.Must(filepath.Glob(pattern))(t) {
			if folder != "../bench" {
				assert.NoError(t, all.AddPackage(folder))
			}
		}
	}
	// These are no constants of their package.
	messages := []string{
		"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user.", "finished call",
	}
	for _, m := range all.Logs {
		messages = append(messages, m.Text)
	}
	for _, want := range []string{"run finished", "user migrated and deleted", "queue rolled over to a new partition"} {
		assert.That(t, slices.Contains(messages, want), "%q is not found in the code", want)
	}
	for _, message := range messages {
		if !documented[message] && message != "job interrupted" && message != "job snoozed" {
			t.Errorf("docs/reference/log-messages.md has nothing about %q", message)
		}
	}
	assert.That(t, len(messages) >= 80, "only %d messages found", len(messages))
}
