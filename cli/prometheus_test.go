//go:build prometheus

package cli_test

import (
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestPrometheus_RulesPassPromtool(t *testing.T) {
	t.Parallel()
	promtool := prometheusProgram(t, "promtool")
	for _, command := range []string{
		"check config prometheus.yml", "check rules --lint-fatal rules.yml alerts.yml", "test rules alerts_test.yml alerts_of_days_test.yml",
	} {
		c := exec.Command(promtool, strings.Fields(command)...)
		c.Dir = deployed
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", command, err, out)
		}
	}
}

// wantExposition fails the test unless promtool finds nothing to complain about in what a server shows.
func wantExposition(t *testing.T, address string) {
	t.Helper()
	begun := time.Now()
	content, err := get("http://" + address + "/metrics")
	took := time.Since(begun)
	assert.NoError(t, err)
	c := exec.Command(prometheusProgram(t, "promtool"), "check", "metrics")
	c.Stdin = strings.NewReader(string(content))
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	series := 0
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	if t.Logf("%d series, %d bytes, %s", series, len(content), took); series > 1500 {
		t.Errorf("%d series are too many", series)
	}
}

// causes notes which alerts have fired.
type causes struct {
	*prometheus
	fired map[string]string
	begun time.Time
}

// until waits until these alerts have fired, and notes all that fire meanwhile.
func (c *causes) until(names ...string) {
	c.t.Helper()
	missing := func() []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return c.fired[name] != "" })
	}
	defer func() {
		never := missing()
		assert.That(c.t, len(never) <= 0, "caused, but did not fire: %v", never)
	}()
	devdb.Eventually(c.t, "all alerts that were caused fire", func() bool {
		for name, alerts := range c.firing() {
			if c.fired[name] != "" {
				continue
			}
			a := alerts[0]
			c.fired[name] = a.Annotations["summary"] + ". " + a.Annotations["description"]
			c.t.Logf("%5.1f s: %s", time.Since(c.begun).Seconds(), c.fired[name])
			for _, wrong := range []string{"<no value>", "<error", "  ", " .", "%!"} {
				assert.Lacks(c.t, c.fired[name], wrong)
			}
		}
		return len(missing()) == 0
	})
}

func TestPrometheus_ScrapesServersAtWorkAndAlertsFireWhenTheyAreCaused(t *testing.T) {
	t.Parallel()
	c := &causes{begun: time.Now(), fired: map[string]string{}}
	e := newWatchedEstate(t)
	c.prometheus = e.prometheus
	first := e.serve(0, "CARETAKER_SCHEDULER_ENABLED=false", "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_MAX_DELETES=5000",
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_MAX_QUEUED=40",
		"CARETAKER_WORKERS_PLACEHOLDER_USER_CLEANUP_INTERVAL=1ms", "CARETAKER_WORKERS_ADJOURNED_GROUP_DELETION_INTERVAL=1ms")
	t.Logf("%5.1f s: at work", time.Since(c.begun).Seconds())
	e.work(first)
	c.until("ServerDown", "SchedulerStopped", "StatementsSlow", "WorkerFailing", "PausedLong", "RunPastItsTime",
		"LeaseHeldTooLong", "LeaseLost", "BacklogOld", "BacklogNotDraining", "BacklogNotMeasured", "DailyWorkNotDone",
		"PartitionsPilingUp", "ParentsNotTracked", "DeadRecords", "GhostMigrationsPending", "GhostMigrationErrors", "GhostMigrationsRefused",
		"GroupsHeld", "GroupsFailed", "MaximumAttemptsReached", "PlaceholdersGivenUp", "TokenPassContinued", "JobsFailed",
		"JobsDiscarded", "JobsNotWorked", "CleanupErrors", "CleanupOverLimit", "DatabaseUnreachable")
	t.Run("the exposition is in order", func(t *testing.T) { wantExposition(t, "127.0.0.1:"+e.ports[0]) })
	t.Run("rules are healthy and name what is there", e.wantRules)
	t.Run("panels show something", e.wantPanels)

	second := e.serve(1, "CARETAKER_JOBS_ENABLED=false", "CARETAKER_DATABASES_CI_URL="+e.urls["ci"]+"&pool_max_conns=2",
		"CARETAKER_LOAD_MAX_WAL_RATE=1kB", "CARETAKER_LOAD_TIMEOUT=1s",
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_SCHEDULE=*/5 * * * *", "CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_CATCH_UP=false",
		"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_ENABLED=false", "CARETAKER_WORKERS_GHOST_USER_MIGRATION_ENABLED=false")
	end := e.burden(second)
	c.until("PoolExhausted", "DatabaseLoaded", "ThrottledLong", "NoSuccess", "FiresMissed")
	end()
	for _, s := range []*watchedServer{first, second} {
		signal(t, s.process, syscall.SIGKILL)
		_ = s.process.Wait()
	}
	c.until("Down")

	for _, r := range deployedRules(t) {
		name, ok := strings.CutPrefix(r.Alert, "Caretaker")
		assert.That(t, !ok || c.fired[name] != "", "%s has not been caused", r.Alert)
	}
	t.Logf("%d alerts fired: %v", len(c.fired), slices.Sorted(maps.Keys(c.fired)))
}

// Hours and days that a test cannot wait for have passed as soon as a record reports it. In main:
const (
	faultySQL = `
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.faulters', 1), ('public.dozers', 1);
INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
SELECT partition, id, 9, 9, 'faulty.faulter_id -> faulters', 'P0001' FROM loose_foreign_keys_deleted_records
WHERE fully_qualified_table_name = 'public.faulters'`

	thiefSQL = `
UPDATE maintenance.leases SET holder = 'thief', epoch = epoch + 1, expires_at = clock_timestamp() + interval '1 s'
WHERE name = 'loose_foreign_keys_cleanup/main' AND expires_at > clock_timestamp()`

	noThiefSQL = `
TRUNCATE dozing;
UPDATE maintenance.leases SET expires_at = now() WHERE holder = 'thief';
UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`

	floodSQL = `
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.dozers', 2);
INSERT INTO flood SELECT repeat('x', 1000) FROM generate_series(1, 100);
SELECT pg_sleep(0.1)`

	manyGhostsSQL = `
INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
SELECT i, 'u' || i, 'u' || i, 0, 'blocked', 15, 1 FROM generate_series(10001, 11100) i;
INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at)
SELECT i, now() - interval '1 minute', now() - interval '2 days', now() FROM generate_series(10001, 11100) i`

	invalidSettingSQL = `UPDATE application_settings SET resource_access_tokens_settings = '{"inactive_resource_access_tokens_delete_after_days": "soon"}'`

	yesterdaySQL = `
UPDATE maintenance.runs SET started_at = started_at - interval '1 day', finished_at = finished_at - interval '1 day'
WHERE worker = 'inactive_token_deletion' AND finished_at IS NOT NULL;
UPDATE maintenance.pauses SET since = since - interval '2 days'`

	noSchedulerSQL = `INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES ('inactive_token_deletion', '*/5 * * * *', now() - interval '40 minutes')`

	lastAttemptSQL = `
UPDATE maintenance.river_job SET max_attempts = attempt + 1, scheduled_at = now() WHERE kind = 'delete_user' AND state = 'retryable' AND max_attempts = 25`

	notWorkedSQL = `
UPDATE maintenance.river_job SET state = 'available', queue = 'elsewhere', finalized_at = NULL, scheduled_at = now() - interval '1 hour'
WHERE id = (SELECT min(id) FROM maintenance.river_job WHERE state IN ('completed', 'cancelled'))`

	longRunSQL = `UPDATE maintenance.runs SET started_at = started_at - interval '10 minutes' WHERE state = 'running' AND database = 'ci'`
)

// In ci:
const longLeaseSQL = `UPDATE maintenance.leases SET acquired_at = acquired_at - interval '10 minutes' WHERE expires_at > now()`

// work lets a server run all workers, and causes what they, their jobs and backlogs can be blamed
// for. The gauges come first: they are as old as 15 seconds.
func (e *watchedEstate) work(s *watchedServer) {
	t, main := e.t, e.sql["main"]
	t.Helper()
	s.run(worker, "sec", false)
	// The tokens come first, while there are more bots than its run may take.
	tokens := "inactive_token_deletion"
	s.run(tokens, "", false)
	for _, name := range others(t, s) {
		if name != tokens {
			s.run(name, "", false)
		}
	}
	e.shutSec()
	execute(t, main, invalidSettingSQL)
	s.run(tokens, "", false)
	assert.Must(s.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: "adjourned_group_deletion", Reason: "test"}))(t)
	execute(t, main, yesterdaySQL)
	execute(t, main, noSchedulerSQL)
	execute(t, main, manyGhostsSQL)
	e.until("a job has ended", notWorkedSQL)
	e.until("a job has failed", lastAttemptSQL)
	e.clean(s)
}

// clean runs loose_foreign_keys_cleanup over its limit, past its time, without its lease, and into what cannot be deleted.
func (e *watchedEstate) clean(s *watchedServer) {
	t, main := e.t, e.sql["main"]
	t.Helper()
	s.run(worker, "ci", true)
	e.until("the run in ci is at work", longRunSQL)
	execute(t, e.sql["ci"], longLeaseSQL)
	first := s.run(worker, "main", false)
	assert.That(t, first.GetOverLimit(), "not over its limit: %s", first)
	s.run(worker, "main", false)
	execute(t, main, faultySQL)
	stolen := s.run(worker, "main", true)
	e.until("the run in main has its lease", thiefSQL)
	eventually(t, "the run has lost it", s.log, func() bool {
		answer, err := s.GetRun(context.Background(), &maintenancev1.GetRunRequest{Id: stolen.GetId()})
		return err == nil && answer.GetRun().GetReason() == "LEASE_LOST"
	})
	execute(t, main, noThiefSQL)
	s.run(worker, "main", false)
}

// shutSec refuses all connections to sec.
func (e *watchedEstate) shutSec() {
	e.t.Helper()
	var name string
	assert.NoError(e.t, e.sql["sec"].QueryRow(e.t.Context(), `SELECT current_database()`).Scan(&name))
	execute(e.t, e.sql["main"], `ALTER DATABASE `+name+` ALLOW_CONNECTIONS false`)
	execute(e.t, e.sql["main"], `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+name+`'`)
}

// burden floods the write-ahead log of main, over the limit of a server whose runs then end early.
// It has many calls share its few connections to ci until it is stopped.
func (e *watchedEstate) burden(s *watchedServer) (end func()) {
	e.t.Helper()
	flood := e.connect(e.t, "main")
	execute(e.t, flood, `CREATE TABLE flood (text text)`)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	again := func(work func()) {
		all.Go(func() {
			for ctx.Err() == nil {
				work()
			}
		})
	}
	again(func() { _, _ = flood.Exec(ctx, floodSQL) })
	again(func() { _, _ = s.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, Database: "main"}) })
	for range 24 {
		again(func() { _, _ = s.ListLeases(ctx, &maintenancev1.ListLeasesRequest{Worker: worker}) })
	}
	return func() { cancel(); all.Wait() }
}

// metricSelectors are the selectors of metrics in an expression, with their matchers, and the labels that it groups by.
// It knows as much of the language as our expressions use.
func metricSelectors(expr string) (selectors, labels []string) {
	grouping := regexp.MustCompile(`\b(by|on|group_left)\s*\(([^)]*)\)`)
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for name := range strings.SplitSeq(m[2], ",") {
			if name = strings.TrimSpace(name); name != "" && name != "le" {
				labels = append(labels, name)
			}
		}
	}
	expr = grouping.ReplaceAllString(expr, " ")
	expr = regexp.MustCompile(`\[[^]]*\]|\boffset \S+|\b[0-9][0-9.a-z]*`).ReplaceAllString(expr, " ")
	words := regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})?(\s*\()?`)
	for _, m := range words.FindAllStringSubmatch(expr, -1) {
		if m[3] == "" && !slices.Contains([]string{"and", "or", "unless"}, m[1]) {
			selectors = append(selectors, m[1]+m[2])
		}
	}
	return selectors, labels
}

func TestPrometheusSelectors_AreFoundInExpressions(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string][2]string{
		`sum by (le, a) (rate(x_bucket{b=~"c|d",e!="f"}[5m])) > 0.25`:               {`x_bucket{b=~"c|d",e!="f"}`, "a"},
		`a:b:max{w="x"} >= a:b:max offset 2h and min_over_time(a:b:max[2h]) > 1e3`:  {`a:b:max{w="x"} a:b:max a:b:max`, ""},
		`x > on (a, b) group_left () (max by (a, b) (y) + 60) or absent(up{j="c"})`: {`x y up{j="c"}`, "a b a b"},
	} {
		selectors, labels := metricSelectors(expr)
		assert.Equal(t, [2]string{strings.Join(selectors, " "), strings.Join(labels, " ")}, want, expr)
	}
}

// panel is a panel of the dashboard.
type panel struct {
	Title, Description string
	Targets            []struct{ Expr string }
}

// expressions are those of the panels by title, with the variables of Grafana filled in.
func dashboardPanels(t *testing.T) (all []panel) {
	t.Helper()
	var dashboard struct{ Panels []panel }
	filled := strings.NewReplacer("$__rate_interval", "30s", "$__range", "10m", "$worker", ".*", "$database", ".*").
		Replace(fileContent(t, "../deploy/grafana/caretaker.json"))
	assert.NoError(t, json.Unmarshal([]byte(filled), &dashboard))
	return dashboard.Panels
}

// wantNames fails the test unless all metrics, values of labels and labels of an expression are there.
func (p *prometheus) wantNames(where, expr string, more ...string) {
	p.t.Helper()
	selectors, labels := metricSelectors(expr)
	known := map[string]bool{}
	for _, s := range selectors {
		found := p.series(s)
		assert.That(p.t, len(found) != 0, "%s: there is no %s", where, s)
		for _, series := range found {
			for label := range series {
				known[label] = true
			}
		}
	}
	for _, label := range append(labels, more...) {
		assert.That(p.t, known[label], "%s: nothing in it has a label %s", where, label)
	}
}

// wantRules fails the test unless all rules are loaded and healthy, and all that they name is there.
func (p *prometheus) wantRules(t *testing.T) {
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	assert.NoError(t, p.ask("rules", nil, &answer))
	health := map[string]string{}
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			health[r.Name] = r.Health + r.LastError
		}
	}
	used := regexp.MustCompile(`\$labels\.([a-z_]+)`)
	for _, r := range deployedRules(t) {
		name := r.Alert + r.Record
		assert.Equal(t, health[name], "ok", name)
		var labels []string
		for _, m := range used.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			labels = append(labels, m[1])
		}
		p.wantNames(name, r.Expr, labels...)
	}
}

// wantPanels fails the test unless every expression of the dashboard can be evaluated. It has a
// result, or the panel's description explains when it is empty.
func (p *prometheus) wantPanels(t *testing.T) {
	expressions, empty := 0, 0
	for _, panel := range dashboardPanels(t) {
		for _, target := range panel.Targets {
			expressions++
			found, err := p.query(target.Expr)
			assert.That(t, err == nil, "%s: %v", panel.Title, err)
			p.wantNames("panel "+panel.Title, target.Expr)
			if len(found) > 0 {
				continue
			}
			empty++
			assert.Contains(t, panel.Description, "Empty when ")
		}
	}
	if t.Logf("%d expressions, %d without data", expressions, empty); expressions < 50 {
		t.Errorf("only %d expressions", expressions)
	}
}
