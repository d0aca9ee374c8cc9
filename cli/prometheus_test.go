//go:build prometheus

package cli_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
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
		if never := missing(); len(never) > 0 {
			c.t.Errorf("caused, but did not fire: %v", never)
		}
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
		"CARETAKER_LOAD_MAX_WAL_RATE=1kB", "CARETAKER_LOAD_PATIENCE=1s",
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
		if name, ok := strings.CutPrefix(r.Alert, "Caretaker"); ok && c.fired[name] == "" {
			t.Errorf("%s has not been caused", r.Alert)
		}
	}
	t.Logf("%d alerts fired: %v", len(c.fired), slices.Sorted(maps.Keys(c.fired)))
}
