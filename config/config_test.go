package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const mainURL = "CARETAKER_DATABASES_MAIN_URL=postgres://u:secret@db/main"

// write makes a file c.yml in a folder of its own.
func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoad_EnvironmentAloneIsEnough(t *testing.T) {
	got, err := load("", []string{"PATH=/bin", mainURL})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listen: "127.0.0.1:50051", MetricsListen: "127.0.0.1:9464", LogLevel: "info", SchedulerEnabled: true, JobsEnabled: true,
		HistoryKeep:             720 * time.Hour,
		Databases:               []Database{{Name: "main", URL: "postgres://u:secret@db/main"}},
		Load:                    LoadLimits{MaxReplicaLag: 30 * time.Second, MaxWALArchiveBacklog: 4 << 30, MaxLockWait: 5 * time.Second, Patience: 20 * time.Second},
		LooseForeignKeysCleanup: LooseForeignKeysCleanup{Worker: Worker{Enabled: true}, Rotation: "minute"},
		GhostUserMigration:      GhostUserMigration{Worker: Worker{Enabled: true}},
		AdjournedGroupDeletion:  AdjournedGroupDeletion{Worker: Worker{Enabled: true}},
		PlaceholderUserCleanup:  PlaceholderUserCleanup{Worker: Worker{Enabled: true}},
		InactiveTokenDeletion:   InactiveTokenDeletion{Worker: Worker{Enabled: true}, MaxQueued: 100_000},
	}
	same(t, got, want, nil)
}

func TestLoad_ReadsEveryKeyFromTheFile(t *testing.T) {
	got, err := load(write(t, `
listen: 0.0.0.0:50051
metrics_listen: ""
insecure: true
tls: {cert_file: c.pem, key_file: k.pem, client_ca_file: ca.pem}
auth:
  token_file: t
web_listen: 0.0.0.0:8080
web: {trace_url: "https://jaeger/trace/{trace_id}"}
log: {level: debug, format: text}
scheduler:
  enabled: false
jobs: {enabled: false}
history: {keep: 48h}
databases:
  sec: {url: "postgres://sec"}
  main: {url: "postgres://main", replica_url: "postgres://replica"}
  ci:
load: {max_replica_lag: 1m}
workers:
  loose_foreign_keys_cleanup:
    schedule: "*/5 * * * *"
    enabled: false
    catch_up: true
    definitions: d.yml
    rotation: all
    batch_size: 1
    max_deletes: 2
    max_updates: 3
    max_runtime: 1m30s
  ghost_user_migration:
    schedule: "*/3 * * * *"
    limit: 14
    max_runtime: 15s
  adjourned_group_deletion:
    schedule: "0 3 * * *"
    enabled: false
    catch_up: false
    batch_size: 4
    interval: 5s
  placeholder_user_cleanup: {max_attempts: 6, retry_period: 7h, interval: 8s, batch_size: 9}
  inactive_token_deletion:
    schedule: "0 1 * * *"
    batch_size: 10
    max_runtime: 11s
    continue_after: 12s
    max_queued: 16
`), nil)
	same(t, got, everyKey(), err)
}

// everyKey is what the file of that test says.
func everyKey() *Config {
	return &Config{
		Listen: "0.0.0.0:50051", Insecure: true, LogLevel: "debug", LogFormat: "text",
		WebListen: "0.0.0.0:8080", WebTraceURL: "https://jaeger/trace/{trace_id}", HistoryKeep: 48 * time.Hour,
		TLS: TLS{CertFile: "c.pem", KeyFile: "k.pem", ClientCAFile: "ca.pem"}, Auth: Auth{TokenFile: "t"},
		Databases: []Database{
			{Name: "main", URL: "postgres://main", ReplicaURL: "postgres://replica"}, {Name: "sec", URL: "postgres://sec"},
		},
		Load: LoadLimits{MaxReplicaLag: time.Minute, MaxWALArchiveBacklog: 4 << 30, MaxLockWait: 5 * time.Second, Patience: 20 * time.Second},
		LooseForeignKeysCleanup: LooseForeignKeysCleanup{
			Worker: Worker{Schedule: "*/5 * * * *", CatchUp: new(true)}, Definitions: "d.yml",
			Rotation: "all", BatchSize: 1, MaxDeletes: 2, MaxUpdates: 3, MaxRuntime: 90 * time.Second,
		},
		GhostUserMigration: GhostUserMigration{
			Worker: Worker{Schedule: "*/3 * * * *", Enabled: true}, Limit: 14, MaxRuntime: 15 * time.Second,
		},
		AdjournedGroupDeletion: AdjournedGroupDeletion{Worker: Worker{Schedule: "0 3 * * *", CatchUp: new(false)}, BatchSize: 4, Interval: 5 * time.Second},
		PlaceholderUserCleanup: PlaceholderUserCleanup{
			Worker: Worker{Enabled: true}, MaxAttempts: 6, RetryPeriod: 7 * time.Hour, Interval: 8 * time.Second, BatchSize: 9,
		},
		InactiveTokenDeletion: InactiveTokenDeletion{
			Worker: Worker{Schedule: "0 1 * * *", Enabled: true}, BatchSize: 10, MaxRuntime: 11 * time.Second, ContinueAfter: 12 * time.Second,
			MaxQueued: 16,
		},
	}
}

func same(t *testing.T, got, want *Config, err error) {
	t.Helper()
	for _, c := range []*Config{got, want} {
		if c != nil {
			c.places = nil // They say where, not what.
		}
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestLoad_EnvironmentWinsOverTheFile(t *testing.T) {
	got, err := load(write(t, "metrics_listen: 127.0.0.1:1\nworkers: {loose_foreign_keys_cleanup: {batch_size: 7}}"), []string{
		mainURL, "CARETAKER_METRICS_LISTEN=", "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_BATCH_SIZE=8",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.MetricsListen != "" || got.LooseForeignKeysCleanup.BatchSize != 8 {
		t.Errorf("got metrics_listen %q, batch_size %d", got.MetricsListen, got.LooseForeignKeysCleanup.BatchSize)
	}
}

func TestLoad_NamesEveryMistakeInTheFile(t *testing.T) {
	for content, want := range map[string]string{
		"workers:\n  loose_foreign_keys_cleanup:\n    batchsize: 1": `c.yml:3: workers.loose_foreign_keys_cleanup.batchsize: unknown key, did you mean workers.loose_foreign_keys_cleanup.batch_size?`,
		"worker:\n  x: 1":               `c.yml:1: worker: unknown key, did you mean workers?`,
		"databases:\n  other: {url: x}": `c.yml:2: databases.other: unknown key`,
		"jobs: {enabled: 1}":            `jobs.enabled: "1" is not true or false`,
		"job: {enabled: true}":          `c.yml:1: job: unknown key`,
		"listen: 8080":                  `c.yml:1: listen: must be text: put it in quotes`,
		"listen: nowhere":               `c.yml:1: listen: "nowhere" is not an address such as 127.0.0.1:50051`,
		"listen: h:99999":               `"h:99999" is not an address`,
		"web_listen: '8099'":            `"8099" is not an address such as 127.0.0.1:8080`,
		"history: {keep: 59m}":          `history.keep: 59m is too short: at least 1h`,
		"scheduler: {enabled: 1}":       `scheduler.enabled: "1" is not true or false`,
		"scheduler: on":                 `c.yml:1: scheduler: must be a mapping`,
		"- a":                           `c.yml:1: the configuration: must be a mapping`,
		"listen:":                       `c.yml:1: listen: has no value`,
		"listen: {a: b}":                `c.yml:1: listen: must be text`,
		"log: {level: loud}":            `log.level: "loud" is none of debug, info, warn, error`,
		"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2":                                   `c.yml:2: listen: given twice`,
		"a: b\n---\nc: d":                                                            `c.yml: more than one YAML document`,
		"load: {max_wal_rate: fast}":                                                 `load.max_wal_rate: "fast" is not a size such as 64MB or 4GB`,
		"load: {max_wal_rate: -1}":                                                   `load.max_wal_rate: -1 is negative: 0 is off`,
		"load: {max_wal_rate: 9000000TB}":                                            `load.max_wal_rate: 9000000TB is too large: at most 1024TB`,
		"load: {max_wal_rate: 99999999999999999999}":                                 `load.max_wal_rate: 99999999999999999999 is too large: at most 1024TB`,
		"load: {max_autovacuum: 721h}":                                               `load.max_autovacuum: 721h is too long: at most 720h`,
		"history: {keep: 87601h}":                                                    `history.keep: 87601h is too long: at most 87600h`,
		"history: {keep: 100000000000h}":                                             `history.keep: 100000000000h is too long: at most 87600h`,
		"workers: {ghost_user_migration: {limit: 100001}}":                           `limit: 100001 is too large: at most 100000`,
		"workers: {ghost_user_migration: {max_runtime: 100000h}}":                    `max_runtime: 100000h is too long: at most 24h`,
		"workers: {adjourned_group_deletion: {interval: 25h}}":                       `interval: 25h is too long: at most 24h`,
		"workers: {loose_foreign_keys_cleanup: {batch_size: 99999999999999}}":        `batch_size: 99999999999999 is too large: at most 10000`,
		"workers: {loose_foreign_keys_cleanup: {batch_size: 99999999999999999999}}":  `batch_size: 99999999999999999999 is too large: at most 10000`,
		"workers: {loose_foreign_keys_cleanup: {max_deletes: 100000001}}":            `max_deletes: 100000001 is too large: at most 100000000`,
		"workers: {placeholder_user_cleanup: {max_attempts: 1001}}":                  `max_attempts: 1001 is too large: at most 1000`,
		"workers: {placeholder_user_cleanup: {retry_period: 8761h}}":                 `retry_period: 8761h is too long: at most 8760h`,
		"workers: {inactive_token_deletion: {max_queued: 10000001}}":                 `max_queued: 10000001 is too large: at most 10000000`,
		"workers: {inactive_token_deletion: {continue_after: 24h1s}}":                `continue_after: 24h1s is too long: at most 24h`,
		"load: {max_lock_wait: -1s}":                                                 `load.max_lock_wait: -1s is negative: 0 is off`,
		"load: {patience: 0s}":                                                       `load.patience: 0s is too short`,
		"workers: {inactive_token_deletion: {max_queued: -1}}":                       `max_queued: -1 is too small`,
		"log: {format: xml}":                                                         `log.format: "xml" is none of json, text`,
		"web: {trace_url: jaeger}":                                                   `web.trace_url: "jaeger" is not an address such as https://jaeger.example/trace/{trace_id}`,
		"web_listen: 0.0.0.0:1":                                                      `web_listen: "0.0.0.0:1" can be reached from other hosts`,
		"workers: {loose_foreign_keys_cleanup: {max_deletes: 0}}":                    `max_deletes: 0 is too small: at least 1`,
		"workers: {loose_foreign_keys_cleanup: {max_deletes: 99999999999999999999}}": `max_deletes: 99999999999999999999 is too large: at most 100000000`,
		"workers: {loose_foreign_keys_cleanup: {max_updates: 1.5}}":                  `max_updates: "1.5" is not a whole number`,
		"workers: {loose_foreign_keys_cleanup: {max_runtime: 30}}":                   `max_runtime: "30" is not a duration such as 30s or 2m`,
		"workers: {loose_foreign_keys_cleanup: {max_runtime: -3s}}":                  `max_runtime: -3s is too short: more than 0`,
		"workers:\n  loose_foreign_keys_cleanup:\n    schedule: * * * * *":           `(a schedule that begins with * has to be quoted: schedule: "* * * * *")`,
		"listen: 0.0.0.0:1":                                                          `listen: "0.0.0.0:1" can be reached from other hosts`,
		"listen: :1":                                                                 `can be reached from other hosts`,
		"tls: {cert_file: c}":                                                        `tls.cert_file and tls.key_file belong together`,
		"tls: {client_ca_file: c}":                                                   `tls.client_ca_file needs tls.cert_file`,
		"auth: {token: a, token_file: b}":                                            `auth.token and auth.token_file: set one of them`,
		"databases: {ci: {replica_url: postgres:}}":                                  `databases.ci.replica_url is set without databases.ci.url`,
	} {
		if _, err := load(write(t, content), []string{mainURL}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to contain %q", content, err, want)
		}
	}
}

func TestLoad_ReportsAllMistakesAtOnce(t *testing.T) {
	_, err := load(write(t, "a: 1\nb: 2\nlog: {level: loud}"), []string{"CARETAKER_SCHEDULER_ENABLED=maybe"})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("got %v, want four lines", err)
	}
}

func TestLoad_AcceptsListeningEverywhereWithProtection(t *testing.T) {
	for _, entry := range []string{"CARETAKER_INSECURE=true", "CARETAKER_AUTH_TOKEN=t", "CARETAKER_AUTH_TOKEN_FILE=t"} {
		if _, err := load("", []string{mainURL, "CARETAKER_LISTEN=0.0.0.0:50051", entry}); err != nil {
			t.Errorf("%s: %v", entry, err)
		}
	}
	for _, address := range []string{"localhost:1", "[::1]:1", "127.8.8.8:1"} {
		if _, err := load("", []string{mainURL, "CARETAKER_LISTEN=" + address}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestLoad_NamesVariablesThatLookLikeKeys(t *testing.T) {
	for entry, want := range map[string]string{
		"CARETAKER_LISTENN=x":             "CARETAKER_LISTENN: no such configuration key, did you mean CARETAKER_LISTEN?",
		"CARETAKER_DATABASE_MAIN_URL=x":   "did you mean CARETAKER_DATABASES_MAIN_URL?",
		"CARETAKER_DATABASES_OTHER=x":     "CARETAKER_DATABASES_OTHER: no such configuration key",
		"CARETAKER_DATABASES_URL=x":       "no such configuration key, there is CARETAKER_DATABASES_<NAME>_URL",
		"CARETAKER_WORKERS_ENABLED=false": "no such configuration key, there is CARETAKER_WORKERS_<NAME>_ENABLED",
		"CARETAKER_ADDDRESS=x":            "did you mean CARETAKER_ADDRESS?",
		"CARETAKER_SCHEDULER_ENABLED=no":  `CARETAKER_SCHEDULER_ENABLED: "no" is not true or false`,
	} {
		if _, err := load("", []string{mainURL, entry}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to contain %q", entry, err, want)
		}
	}
}

func TestMistyped_KnowsNoValues(t *testing.T) {
	t.Setenv("CARETAKER_LISTENN", "x")
	t.Setenv("CARETAKER_LISTEN", "nonsense")
	t.Setenv(AddressVariable, "127.0.0.1:1")
	if all := Mistyped(); len(all) != 1 || !strings.Contains(all[0].Error(), "CARETAKER_LISTENN") {
		t.Errorf("got %v", all)
	}
}

func TestLoad_IgnoresVariablesOfOthers(t *testing.T) {
	environ := []string{
		mainURL, "CARETAKER_SERVICE_HOST=10.0.0.1", "CARETAKER_PORT=tcp://10.0.0.1:50051", "CARETAKER_SERVICE_PORT_GRPC=50051",
		"CARETAKER_PORT_50051_TCP_ADDR=10.0.0.1", "CARETAKER_DATABASES_SERVICE_HOST=10.0.0.2", "CARETAKER_IMAGE=x", "CARETAKER=x",
		AddressVariable + "=127.0.0.1:1",
	}
	if _, err := load("", environ); err != nil {
		t.Error(err)
	}
}

func TestLoad_NeedsMain(t *testing.T) {
	_, err := load("", []string{"CARETAKER_DATABASES_CI_URL=x"})
	if err == nil || !strings.Contains(err.Error(), "CARETAKER_DATABASES_MAIN_URL") {
		t.Errorf("got %v, want it to name the variable of databases.main.url", err)
	}
	if _, err := load("no-such-file.yml", []string{mainURL}); err == nil || !strings.Contains(err.Error(), "no-such-file.yml") {
		t.Errorf("got %v, want it to name the file", err)
	}
}

func TestLoad_NeverRepeatsASecret(t *testing.T) {
	_, err := load(write(t, "auth: {token: 123456}\ndatabases: {main: {url: {secret: 1}}}"), []string{mainURL})
	if err == nil || strings.Contains(err.Error(), "123456") || strings.Contains(err.Error(), "secret@") {
		t.Errorf("got %v", err)
	}
}

func TestOpenTelemetry_NamesEndpointsThatNothingCanBeSentTo(t *testing.T) {
	for environ, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::":                                                         "OTEL_EXPORTER_OTLP_ENDPOINT is no URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=nonsense":                                                    "OTEL_EXPORTER_OTLP_ENDPOINT is no URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_TRACES_EXPORTER=otlp":                               "OTEL_EXPORTER_OTLP_ENDPOINT is no URL",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=localhost:4318":                                       "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is no URL",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://":                                             "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is no URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_TRACES_EXPORTER=none,OTEL_METRICS_EXPORTER=console": "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_SDK_DISABLED=true":                                  "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318/base":                                  "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=unix:///run/otel.sock":                                       "",
	} {
		c, err := load("", append(strings.Split(environ, ","), mainURL))
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(c.OpenTelemetry.Mistakes, "\n")
		if !strings.HasPrefix(said, want) || (want == "") != (said == "") || strings.Contains(said, "\n") {
			t.Errorf("%s: said %q, want %q", environ, said, want)
		}
	}
}

func TestOpenTelemetry_NamesVariablesThatAreNotUnderstood(t *testing.T) {
	for entry, want := range map[string]string{
		"OTEL_TRACES_SAMPLER=nonsense": "OTEL_TRACES_SAMPLER is none of",
		"OTEL_TRACES_SAMPLER_ARG=2":    "OTEL_TRACES_SAMPLER_ARG is no number",
	} {
		c, err := load("", []string{mainURL, "OTEL_TRACES_EXPORTER=otlp", "OTEL_TRACES_SAMPLER=traceidratio", entry})
		if err != nil || len(c.OpenTelemetry.Doubts) != 1 || !strings.Contains(c.OpenTelemetry.Doubts[0], want) {
			t.Errorf("%s: got %v, %v", entry, c, err)
		}
	}
	c, err := load("", []string{
		mainURL, "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318/base", "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25",
	})
	if err != nil || c.OpenTelemetry.Doubts != nil {
		t.Errorf("got %v, %v", c, err)
	}
}

func TestOpenTelemetry_ExportsOnlyWhatIsAskedFor(t *testing.T) {
	for environ, want := range map[string]OpenTelemetry{
		"":                                     {},
		"OTEL_TRACES_EXPORTER=":                {},
		"OTEL_TRACES_EXPORTER=console":         {Traces: true},
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://x": {Traces: true, Metrics: true},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://x": {Traces: true},
		"OTEL_METRICS_EXPORTER=prometheus":            {},
		"OTEL_METRICS_EXPORTER=otlp":                  {Metrics: true},
		"OTEL_SDK_DISABLED=true":                      {Disabled: true},
		"OTEL_PROPAGATORS=b3,none":                    {Propagators: "b3,none"},
	} {
		if got := openTelemetry([]string{environ}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", environ, got, want)
		}
	}
}

func TestLoad_EmptyVariablesAreUnsetWhereEmptyIsNoValue(t *testing.T) {
	want, err := load(write(t, "log: {level: warn}\nmetrics_listen: \"\""), []string{mainURL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := load(write(t, "log: {level: WARN}"), []string{
		mainURL, "CARETAKER_LOG_LEVEL=", "CARETAKER_LOG_FORMAT=", "CARETAKER_METRICS_LISTEN=", "CARETAKER_LISTEN=", "CARETAKER_INSECURE=",
		"CARETAKER_SCHEDULER_ENABLED=", "CARETAKER_HISTORY_KEEP=", "CARETAKER_LOAD_MAX_REPLICA_LAG=", "CARETAKER_LOAD_MAX_WAL_ARCHIVE_BACKLOG=",
		"CARETAKER_WORKERS_GHOST_USER_MIGRATION_LIMIT=", "CARETAKER_WORKERS_GHOST_USER_MIGRATION_SCHEDULE=",
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_MAX_QUEUED=", "CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_CATCH_UP=",
	})
	same(t, got, want, err)
}
