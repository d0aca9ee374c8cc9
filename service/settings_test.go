package service_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// configured reads a configuration file.
func configured(t *testing.T, content string) (c service.Config, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yml")
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	_, err = config.LoadPartial(file, &c)
	return c, err
}

// wantSettings fails the test unless c has these settings: how long history is kept, the limits of load, and those
// of each worker.
func wantSettings(t *testing.T, c *service.Config, err error, want []any) {
	t.Helper()
	got := []any{
		c.HistoryKeep, c.Load, *service.Settings[lfk.Config](c), *service.Settings[token.Config](c),
		*service.Settings[ghost.Config](c), *service.Settings[group.Config](c),
		*service.Settings[placeholder.Config](c),
	}
	assert.That(t, err == nil && reflect.DeepEqual(got, want), "got %+v, %v, want %+v", got, err, want)
}

func common(schedule string, catchUp bool) run.WorkerConfig {
	return run.WorkerConfig{Schedule: schedule, Enabled: new(true), CatchUp: &catchUp}
}

func TestSettings_Defaults(t *testing.T) {
	got, err := configured(servicetest.Parallel(t), "workers: {ghost_user_migration: {schedule: ''}}")
	want := []any{
		720 * time.Hour,
		load.Config{
			MaxReplicaLag: 30 * time.Second, MaxLockWait: 5 * time.Second, Timeout: 20 * time.Second,
		},
		lfk.Config{
			WorkerConfig: common("* * * * *", false), Rotation: lfk.RotationMinute, ReusedKeys: lfk.ReuseHold, TrackPartitions: new(true), BatchSize: 500,
			MaxDeletes: 100_000, MaxUpdates: 50_000, MaxRuntime: 30 * time.Second,
		},
		token.Config{
			WorkerConfig: common("0 0 * * *", true), BatchSize: 1000, MaxRuntime: 3 * time.Minute,
			ContinueAfter: 2 * time.Minute, MaxQueued: 100_000,
		},
		ghost.Config{
			WorkerConfig: common("*/2 * * * *", false), Limit: 1000, MaxRuntime: time.Minute,
		},
		group.Config{
			WorkerConfig: common("0 2 * * *", true), BatchSize: 100, Interval: 20 * time.Second,
		},
		placeholder.Config{
			WorkerConfig: common("0 0 * * *", true), MaxAttempts: 15, RetryPeriod: 48 * time.Hour,
			Interval: time.Second, BatchSize: 1000,
		},
	}
	wantSettings(t, &got, err, want)
}

func TestSettings_EveryKeyIsRead(t *testing.T) {
	got, err := configured(servicetest.Parallel(t), `
history: {keep: 48h}
load:
  {max_replica_lag: 1m, ignored_replicas: "delayed, far away,", max_wal_rate: 64MB, max_lock_wait: 0s, timeout: 17s}
workers:
  loose_foreign_keys_cleanup:
    {schedule: "*/5 * * * *", enabled: false, catch_up: true, definitions: d.yml, rotation: all, reused_keys: keep, track_partitions: false,
    batch_size: 1, max_deletes: 2, max_updates: 3, max_runtime: 1m30s}
  ghost_user_migration: {schedule: "*/3 * * * *", limit: 14, max_runtime: 15s}
  adjourned_group_deletion: {schedule: "0 3 * * *", enabled: false, catch_up: false, batch_size: 4, interval: 5s}
  placeholder_user_cleanup: {max_attempts: 6, retry_period: 7h, interval: 8s, batch_size: 9}
  inactive_token_deletion: {schedule: "0 1 * * *", batch_size: 10, max_runtime: 11s, continue_after: 12s, max_queued: 16}
`)
	want := []any{
		48 * time.Hour,
		load.Config{
			MaxReplicaLag: time.Minute, IgnoredReplicas: []string{"delayed", "far away"}, MaxWALRate: 64 << 20,
			Timeout: 17 * time.Second,
		},
		lfk.Config{
			WorkerConfig:    run.WorkerConfig{Schedule: "*/5 * * * *", Enabled: new(false), CatchUp: new(true)},
			DefinitionsFile: "d.yml", Rotation: lfk.RotationAll, ReusedKeys: lfk.ReuseKeep, TrackPartitions: new(false), BatchSize: 1, MaxDeletes: 2, MaxUpdates: 3,
			MaxRuntime: 90 * time.Second,
		},
		token.Config{
			WorkerConfig: common("0 1 * * *", true), BatchSize: 10, MaxRuntime: 11 * time.Second,
			ContinueAfter: 12 * time.Second, MaxQueued: 16,
		},
		ghost.Config{
			WorkerConfig: common("*/3 * * * *", false), Limit: 14, MaxRuntime: 15 * time.Second,
		},
		group.Config{
			WorkerConfig: run.WorkerConfig{Schedule: "0 3 * * *", Enabled: new(false), CatchUp: new(false)},
			BatchSize:    4, Interval: 5 * time.Second,
		},
		placeholder.Config{
			WorkerConfig: common("0 0 * * *", true), MaxAttempts: 6, RetryPeriod: 7 * time.Hour, Interval: 8 * time.Second, BatchSize: 9,
		},
	}
	wantSettings(t, &got, err, want)
}

// TestSettings_DefaultsAreWithinTheirBounds: what is set where nothing is given is what may be given.
func TestSettings_DefaultsAreWithinTheirBounds(t *testing.T) {
	t.Parallel()
	for _, k := range config.Keys(&service.Config{}) {
		if k.Default == "" {
			continue
		}
		content := k.Default
		if strings.Contains(content, "*") {
			content = "'" + content + "'"
		}
		path := strings.Split(k.Path, ".")
		for _, name := range slices.Backward(path) {
			content = "{" + name + ": " + content + "}"
		}
		_, err := configured(t, content)
		assert.That(t, err == nil, "%s: %v", content, err)
	}
}

func TestSettings_WrongValuesAreNamed(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"load: {max_replica_lag: -1s}":                             `load.max_replica_lag: -1s is negative: use 0 to disable the limit`,
		"load: {max_wal_rate: -1}":                                 `load.max_wal_rate: -1 is negative: use 0 to disable the limit`,
		"load: {max_wal_archive_backlog: 4GB}":                     `load.max_wal_archive_backlog: this limit was removed: delete the key`,
		"load: {max_lock_wait: -1s}":                               `load.max_lock_wait: -1s is negative: use 0 to disable the limit`,
		"load: {patience: 20s}":                                    `load.patience: this key was renamed: use load.timeout`,
		"load: {max_autovacuum: 0}":                                `load.max_autovacuum: this limit was removed: delete the key`,
		"load: {timeout: -1s}":                                     `load.timeout: -1s is too short: use a duration above 0`,
		"load: {timeout: 0s}":                                      `load.timeout: 0s is too short`,
		"history: {keep: 59m}":                                     `history.keep: 59m is too short: use at least 1h`,
		"history: {keep: 87601h}":                                  `history.keep: 87601h is too long: use at most 87600h`,
		"ghost_user_migration: {limit: -1}":                        `limit: -1 is too small: use at least 1`,
		"ghost_user_migration: {limit: 100001}":                    `limit: 100001 is too large: use at most 100000`,
		"ghost_user_migration: {max_runtime: -1s}":                 `max_runtime: -1s is too short: use a duration above 0`,
		"ghost_user_migration: {max_runtime: 25h}":                 `max_runtime: 25h is too long: use at most 24h`,
		"ghost_user_migration: {schedule: 0 0 * *}":                `schedule: "0 0 * *" is not a cron expression with five fields, such as`,
		"adjourned_group_deletion: {interval: 25h}":                `interval: 25h is too long: use at most 24h`,
		"adjourned_group_deletion: {batch_size: 0}":                `batch_size: 0 is too small: use at least 1`,
		"inactive_token_deletion: {batch_size: -1}":                `batch_size: -1 is too small: use at least 1`,
		"inactive_token_deletion: {max_runtime: -1s}":              `max_runtime: -1s is too short: use a duration above 0`,
		"inactive_token_deletion: {continue_after: -1ns}":          `continue_after: -1ns is too short: use a duration above 0`,
		"inactive_token_deletion: {continue_after: 24h1s}":         `continue_after: 24h1s is too long: use at most 24h`,
		"inactive_token_deletion: {max_queued: -1}":                `max_queued: -1 is too small`,
		"inactive_token_deletion: {max_queued: 10000001}":          `max_queued: 10000001 is too large: use at most 10000000`,
		"inactive_token_deletion: {schedule: 0 0 * *}":             `schedule: "0 0 * *" is not a cron expression with five fields, such as`,
		"loose_foreign_keys_cleanup: {rotation: hour}":             `rotation: "hour" is not one of minute, all`,
		"loose_foreign_keys_cleanup: {batch_size: 99999999999999}": `batch_size: 99999999999999 is too large: use at most 10000`,
		"loose_foreign_keys_cleanup: {max_deletes: 100000001}":     `max_deletes: 100000001 is too large: use at most 100000000`,
		"loose_foreign_keys_cleanup: {max_updates: 1.5}":           `max_updates: "1.5" is not a whole number`,
		"placeholder_user_cleanup: {max_attempts: 1001}":           `max_attempts: 1001 is too large: use at most 1000`,
		"placeholder_user_cleanup: {max_attempts: 2147483648}":     `max_attempts: 2147483648 is too large: use at most 1000`,
		"placeholder_user_cleanup: {retry_period: 8761h}":          `retry_period: 8761h is too long: use at most 8760h`,
	} {
		name, _, _ := strings.Cut(content, ": ")
		if name != "load" && name != "history" {
			content, want = "workers: {"+content+"}", "workers."+name+"."+want
		}
		_, err := configured(t, content)
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%s: got %v, want %s", content, err, want)
	}
}

func TestSettings_AScheduleIsAnExpressionOfFiveFieldsThatFires(t *testing.T) {
	t.Parallel()
	for cron, want := range map[string]string{
		"* * * *": "is not a cron", "* * * * * *": "is not a cron", "@hourly": "is not a cron",
		"@every 1s": "is not a cron", "61 * * * *": "is not a cron",
		"CRON_TZ=Europe/Berlin * * * * *": "is not a cron",
		"0 0 31 2 *":                      "does not fire", "0 0 30 2 *": "does not fire", "0 0 31 4,6,9,11 *": "does not fire", "0 0 29 2 *": "", "0 0 31 * *": "",
	} {
		_, err := configured(t, "workers: {ghost_user_migration: {schedule: '"+cron+"'}}")
		want = `workers.ghost_user_migration.schedule: "` + cron + `" ` + want
		refused := err != nil
		assert.That(t, refused != strings.HasSuffix(want, " ") && (!refused || strings.Contains(err.Error(), want)), "%s: %v", cron, err)
	}
}

// looseForeignKeysOnly takes from main what they do without, and reports it in the configuration.
func looseForeignKeysOnly(e *servicetest.Estate) func(*service.Config) {
	e.T.Helper()
	e.Exec("main", `DROP TABLE maintenance.group_removals, maintenance.job_cancellations,
		maintenance.outside_paths, maintenance.protected_targets, maintenance.token_passes,
		maintenance.user_removals, maintenance.river_job, maintenance.river_queue,
		maintenance.river_leader, maintenance.river_migration CASCADE`)
	return func(c *service.Config) { c.Use = service.UseLooseForeignKeys }
}

func TestUse_LooseForeignKeysAloneWorkWithoutTheOtherTables(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "ci", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id);
		INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	ctx := context.Background()
	s := e.Service(servicetest.OneChild, looseForeignKeysOnly(e), e.WithQueue)
	r := assert.Must(s.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"}))(t)
	assert.Require(t, r.Counts["deleted_rows"] == 1, "%v", r)
	all := assert.Must(s.Status(ctx, ""))(t)
	for _, st := range all {
		assert.That(t, st.Condition != status.ConditionFailing && !strings.Contains(st.ConditionDetail, "river"),
			"%s: %s %s", st.Worker, st.Condition, st.ConditionDetail)
	}
	if all[0].Worker != servicetest.LooseForeignKeys || slices.ContainsFunc(all, func(st status.Worker) bool {
		return st.Worker == "ghost_user_migration"
	}) {
		t.Errorf("workers: %v", all)
	}
	_, err := e.Open[0].History.PruneHistory(ctx, time.Hour)
	assert.That(t, err == nil, "%v", err)
	kinds := s.JobKinds()
	assert.That(t, len(kinds) == 0, "kinds of jobs: %v", kinds)
	for _, name := range m.Names() {
		assert.That(t, !strings.Contains(name, "job") && !strings.Contains(name, "queue"), "metric %s", name)
	}
	values := m.Values("maintenance.runs", "worker=ghost_user_migration")
	assert.That(t, len(values) == 0, "a series of another worker: %v", values)
	_, err = s.RunBatch(ctx, run.Request{Worker: "ghost_user_migration"})
	assert.That(t, errors.Is(err, fault.ErrUnknownWorker) && strings.Contains(err.Error(), "use: gitlab"), "got %v", err)
	_, err = s.RunBatch(ctx, run.Request{Worker: "other"})
	assert.That(t, !strings.Contains(err.Error(), "use:"), "got %v", err)
}

func TestUse_SettingsOfWorkersThatAreLeftOutAreMistakes(t *testing.T) {
	t.Parallel()
	c, err := configured(t, "use: loose_foreign_keys\nworkers:\n  ghost_user_migration: {limit: 7}\n"+
		"  loose_foreign_keys_cleanup: {batch_size: 7}\n")
	want := "c.yml:3: workers.ghost_user_migration.limit: worker ghost_user_migration is not available with `use: " +
		"loose_foreign_keys`"
	assert.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "batch_size"), "got %v", err)
	names := c.Workers()
	assert.That(t, names[0] == servicetest.LooseForeignKeys && !slices.Contains(names, "ghost_user_migration"), "workers %v", names)
}

// TestWorkers_EachIsHeldToTheContract: a worker's fixture is among the tests of its package, where the suite runs.
func TestWorkers_EachIsHeldToTheContract(t *testing.T) {
	t.Parallel()
	for key, settings := range new(service.Config).Sections() {
		_, folder, _ := strings.Cut(reflect.TypeOf(settings).Elem().PkgPath(), "/service/")
		files := assert.Must(filepath.Glob(filepath.Join(folder, "*_test.go")))(t)
		held := false
		for _, file := range files {
			text := assert.Must(os.ReadFile(file))(t)
			held = held || strings.Contains(string(text), "servicetest.Contract(t, servicetest.Fixture{")
		}
		assert.That(t, held, "%s: no test in service/%s calls servicetest.Contract with a fixture", key, folder)
	}
}

// TestWorkers_BearTheNamesOfTheList: settings, runs, leases and pages of a worker go by one name.
func TestWorkers_BearTheNamesOfTheList(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	all := assert.Must(e.Service("", servicetest.Audited).Status(t.Context(), ""))(t)
	names := servicetest.Workers()
	assert.Require(t, len(all) == len(names), "%d workers, the list has %q", len(all), names)
	for i, st := range all {
		assert.Equal(t, st.Worker, names[i], "a name on the list")
	}
}

// tools/sixth_worker.sh builds the example worker that CONTRIBUTING.md shows.
func TestContributing_ShowsTheSixthWorkerAsItIs(t *testing.T) {
	t.Parallel()
	text := assert.Must(os.ReadFile("../CONTRIBUTING.md"))(t)
	script := assert.Must(os.ReadFile("../tools/sixth_worker.sh"))(t)
	sources := string(script)
	for _, pattern := range []string{"repo/gitlab/*.go", "service/gitlab/*/*.go"} {
		files := assert.Must(filepath.Glob("testdata/sixth_worker/" + pattern))(t)
		for _, file := range files {
			source := assert.Must(os.ReadFile(file))(t)
			sources += string(source)
		}
	}
	shown := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllSubmatch(text, -1)
	assert.That(t, len(shown) >= 5, "%d pieces of Go are shown", len(shown))
	for _, piece := range shown {
		assert.That(t, strings.Contains(sources, string(piece[1])), "this is not in testdata/sixth_worker:\n%s", piece[1])
	}
}
