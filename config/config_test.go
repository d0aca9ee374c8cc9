package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

const mainURL = "CARETAKER_DATABASES_MAIN_URL=postgres://u:secret@db/main"

// work is what a caller of Load hands over.
type work struct {
	Keep  time.Duration `key:"history.keep" default:"720h" min:"1h" max:"87600h"`
	Load  limits        `key:"load"`
	Sweep sweep         `key:"workers.sweep"`
	// Other has no key.
	Other string
}

type limits struct {
	Lag     time.Duration `key:"lag" default:"30s" max:"24h" off:"0"`
	Ignored []string      `key:"ignored"`
	Rate    int64         `key:"rate" default:"4GB" max:"1024TB" off:"0" unit:"bytes"`
}

// Worker is what is embedded.
type Worker struct {
	Schedule string `key:"schedule"`
	Enabled  *bool  `key:"enabled" default:"true"`
	CatchUp  *bool  `key:"catch_up" default:"false"`
}

// Check refuses one schedule.
func (Worker) Check(key, text string) error {
	if key == "schedule" && strings.Contains(text, "never") {
		return errors.New("never fires")
	}
	return nil
}

type sweep struct {
	Worker     `schedule:"* * * * *" catch_up:"true"`
	Rotation   string        `key:"rotation" default:"minute" of:"minute all"`
	BatchSize  int           `key:"batch_size" default:"500" max:"10000"`
	MaxDeletes int64         `key:"max_deletes" default:"1000" max:"100000000"`
	MaxRuntime time.Duration `key:"max_runtime" default:"30s" max:"24h"`
	MaxQueued  int           `key:"max_queued" default:"100000" max:"10000000" off:"0"`
}

func defaults() work {
	return work{
		Keep: 720 * time.Hour, Load: limits{Lag: 30 * time.Second, Rate: 4 << 30},
		Sweep: sweep{
			Worker: Worker{Schedule: "* * * * *", Enabled: new(true), CatchUp: new(true)}, Rotation: "minute",
			BatchSize: 500, MaxDeletes: 1000, MaxRuntime: 30 * time.Second, MaxQueued: 100_000,
		},
	}
}

// both is what is read.
type both struct {
	*Config
	work
}

func loadWork(file string, environ []string) (b both, err error) {
	b.Config, err = Environment(environ).Load(file, &b.work)
	return b, err
}

// write makes a file c.yml in a folder of its own.
func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yml")
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// fails checks that there is an error that has the text.
func fails(t *testing.T, err error, text string, about ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%sgot %v, want it to contain %q", fmt.Sprintln(about...), err, text)
	}
}

func TestLoad_EnvironmentAloneIsEnough(t *testing.T) {
	t.Parallel()
	got, err := loadWork("", []string{"PATH=/bin", mainURL})
	want := both{&Config{
		Listen: "127.0.0.1:50051", MetricsListen: "127.0.0.1:9464", LogLevel: "info", SchedulerEnabled: true, JobsEnabled: true,
		Databases: []Database{{Name: "main", URL: "postgres://u:secret@db/main"}},
	}, defaults()}
	same(t, got, want, err)
}

func TestLoad_ReadsEveryKeyFromTheFile(t *testing.T) {
	t.Parallel()
	got, err := loadWork(write(t, `
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
load: {lag: 0s, ignored: "delayed, far away,", rate: 64MB}
workers:
  sweep:
    schedule: "*/5 * * * *"
    enabled: false
    catch_up: false
    rotation: ALL
    batch_size: 1
    max_deletes: 2
    max_runtime: 1m30s
    max_queued: 0
`), nil)
	want := both{&Config{
		Listen: "0.0.0.0:50051", Insecure: true, LogLevel: "debug", LogFormat: "text",
		WebListen: "0.0.0.0:8080", WebTraceURL: "https://jaeger/trace/{trace_id}",
		TLS: TLS{CertFile: "c.pem", KeyFile: "k.pem", ClientCAFile: "ca.pem"}, Auth: Auth{TokenFile: "t"},
		Databases: []Database{
			{Name: "main", URL: "postgres://main", ReplicaURL: "postgres://replica"}, {Name: "sec", URL: "postgres://sec"},
		},
	}, work{
		Keep: 48 * time.Hour, Load: limits{Ignored: []string{"delayed", "far away"}, Rate: 64 << 20},
		Sweep: sweep{
			Worker: Worker{Schedule: "*/5 * * * *", Enabled: new(false), CatchUp: new(false)}, Rotation: "all",
			BatchSize: 1, MaxDeletes: 2, MaxRuntime: 90 * time.Second,
		},
	}}
	same(t, got, want, err)
}

func TestDefaults_LeaveWhatIsSetAndWhatMayBeZero(t *testing.T) {
	t.Parallel()
	var got work
	got.Sweep.BatchSize = 7
	Defaults(&got)
	want := defaults()
	want.Sweep.BatchSize, want.Sweep.MaxQueued, want.Load = 7, 0, limits{}
	assert.That(t, reflect.DeepEqual(got, want), "got %+v, want %+v", got, want)
}

func same(t *testing.T, got, want both, err error) {
	t.Helper()
	assert.That(t, err == nil && reflect.DeepEqual(got, want),
		"got %+v %+v, %v, want %+v %+v", got.Config, got.work, err, want.Config, want.work)
}

func TestLoad_EnvironmentWinsOverTheFile(t *testing.T) {
	t.Parallel()
	got, err := loadWork(write(t, "metrics_listen: 127.0.0.1:1\nworkers: {sweep: {batch_size: 7}}"), []string{
		mainURL, "CARETAKER_METRICS_LISTEN=", "CARETAKER_WORKERS_SWEEP_BATCH_SIZE=8",
	})
	assert.That(t, err == nil && got.MetricsListen == "" && got.Sweep.BatchSize == 8,
		"got metrics_listen %q, batch_size %d, %v", got.MetricsListen, got.Sweep.BatchSize, err)
}

func TestLoad_NamesEveryMistakeInTheFile(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"workers:\n  sweep:\n    batchsize: 1":                  `c.yml:3: workers.sweep.batchsize: unknown key (did you mean workers.sweep.batch_size?)`,
		"worker:\n  x: 1":                                       `c.yml:1: worker: unknown key (did you mean workers?)`,
		"databases:\n  Other: {url: x}":                         `c.yml:2: databases.Other: unknown key: a database name must start with a lower-case letter`,
		"databases:\n  other: {url: x}":                         `c.yml:2: databases.other.url: is not a PostgreSQL URL (not shown`,
		"databases:\n  other: {uri: x}":                         `c.yml:2: databases.other.uri: unknown key (did you mean databases.other.url?)`,
		"databases:\n  a234567890123456789012345678901x: {}":    `c.yml:2: databases.a234567890123456789012345678901x: unknown key: a database name`,
		"workers:\n  lfk: {enabled: true}":                      `c.yml:2: workers.lfk: unknown key: use one of sweep`,
		"workers:\n\tsweep:\n":                                  `(line 2 is indented with a tab: use spaces)`,
		"databases: {ci: {url: mysql://x}}":                     `c.yml:1: databases.ci.url: is not a PostgreSQL URL (not shown`,
		"auth: {certificates: {alice: boss}}":                   `c.yml:1: auth.certificates: alice: "boss" is not one of viewer, operator, admin`,
		"auth: {certificates: [alice]}":                         `auth.certificates: "[alice]" is not a mapping such as {alice: operator}`,
		"auth: {certificates: {}}":                              `auth.certificates: is empty: add an entry`,
		"auth: {certificates: {alice: admin}}":                  `c.yml:1: auth.certificates requires tls.client_ca_file`,
		"jobs: {enabled: 1}":                                    `jobs.enabled: "1" is neither true nor false`,
		"job: {enabled: true}":                                  `c.yml:1: job: unknown key`,
		"listen: 8080":                                          `c.yml:1: listen: must be text: put the value in quotes`,
		"listen: nowhere":                                       `c.yml:1: listen: "nowhere" is not an address of the form HOST:PORT (port 0 to 65535), such as 127.0.0.1:50051`,
		"listen: h:99999":                                       `"h:99999" is not an address of the form`,
		"web_listen: '8099'":                                    `"8099" is not an address of the form HOST:PORT (port 0 to 65535), such as 127.0.0.1:8080`,
		"history: {keep: 59m}":                                  `history.keep: 59m is too short: use at least 1h`,
		"scheduler: {enabled: 1}":                               `scheduler.enabled: "1" is neither true nor false`,
		"scheduler: on":                                         `c.yml:1: scheduler: must be a mapping`,
		"- a":                                                   `c.yml:1: the configuration: must be a mapping`,
		"listen:":                                               `c.yml:1: listen: has no value`,
		"listen: {a: b}":                                        `c.yml:1: listen: must be text`,
		"log: {level: loud}":                                    `log.level: "loud" is not one of debug, info, warn, error`,
		"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2":              `c.yml:2: listen: duplicate key`,
		"a: b\n---\nc: d":                                       `c.yml contains more than one YAML document`,
		"load: {rate: fast}":                                    `load.rate: "fast" is not a size such as 64MB or 4GB`,
		"load: {rate: -1}":                                      `load.rate: -1 is negative: use 0 to disable the limit`,
		"load: {rate: 9000000TB}":                               `load.rate: 9000000TB is too large: use at most 1024TB`,
		"load: {rate: 99999999999999999999}":                    `load.rate: 99999999999999999999 is too large: use at most 1024TB`,
		"history: {keep: 87601h}":                               `history.keep: 87601h is too long: use at most 87600h`,
		"history: {keep: 100000000000h}":                        `history.keep: 100000000000h is too long: use at most 87600h`,
		"workers: {sweep: {schedule: never}}":                   `c.yml:1: workers.sweep.schedule: never fires`,
		"workers: {sweep: {batch_size: 99999999999999}}":        `batch_size: 99999999999999 is too large: use at most 10000`,
		"workers: {sweep: {batch_size: 99999999999999999999}}":  `batch_size: 99999999999999999999 is too large: use at most 10000`,
		"workers: {sweep: {max_deletes: 100000001}}":            `max_deletes: 100000001 is too large: use at most 100000000`,
		"workers: {sweep: {max_queued: 10000001}}":              `max_queued: 10000001 is too large: use at most 10000000`,
		"load: {lag: -1s}":                                      `load.lag: -1s is negative: use 0 to disable the limit`,
		"workers: {sweep: {max_queued: -1}}":                    `max_queued: -1 is too small`,
		"log: {format: xml}":                                    `log.format: "xml" is not one of json, text`,
		"web: {trace_url: jaeger}":                              `web.trace_url: "jaeger" is not an http or https URL that contains {trace_id}, such as https://jaeger.example/trace/{trace_id}`,
		"web_listen: 0.0.0.0:1":                                 `web_listen: other hosts can reach "0.0.0.0:1"`,
		"workers: {sweep: {max_deletes: 0}}":                    `max_deletes: 0 is too small: use at least 1`,
		"workers: {sweep: {max_deletes: 99999999999999999999}}": `max_deletes: 99999999999999999999 is too large: use at most 100000000`,
		"workers: {sweep: {max_deletes: 1.5}}":                  `max_deletes: "1.5" is not a whole number`,
		"workers: {sweep: {max_runtime: 30}}":                   `max_runtime: "30" is not a duration such as 30s or 2m`,
		"workers: {sweep: {max_runtime: -3s}}":                  `max_runtime: -3s is too short: use a duration above 0`,
		"workers:\n  sweep:\n    schedule: * * * * *":           `(put a schedule that starts with * in quotes, as in schedule: "* * * * *")`,
		"listen: 0.0.0.0:1":                                     `listen: other hosts can reach "0.0.0.0:1"`,
		"metrics_listen: 0.0.0.0:1":                             `metrics_listen: other hosts can reach "0.0.0.0:1"`,
		"listen: :1":                                            `set tls.cert_file and tls.key_file, set auth.tokens_file or auth.token_file`,
		"web_listen: localhost:9464":                            `c.yml:1: web_listen: metrics_listen uses the same address localhost:9464: set a different port`,
		"listen: 127.0.0.1:1\nmetrics_listen: 127.0.0.1:1":      `c.yml:2: metrics_listen: listen uses the same address 127.0.0.1:1: set a different port`,
		"insecure: true\nlisten: :1\nweb_listen: 127.0.0.1:1":   `c.yml:3: web_listen: listen uses the same address`,
		"tls: {cert_file: c}":                                   `tls.cert_file and tls.key_file belong together`,
		"tls: {client_ca_file: c}":                              `tls.client_ca_file requires tls.cert_file`,
		"auth: {token: a, token_file: b}":                       `auth.token and auth.token_file are mutually exclusive: set only one of them`,
		"databases: {ci: {replica_url: postgres:}}":             `databases.ci.replica_url is set without databases.ci.url`,
	} {
		_, err := loadWork(write(t, content), []string{mainURL})
		fails(t, err, want, content)
	}
}

func TestLoad_ReportsAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := loadWork(write(t, "a: 1\nb: 2\nlog: {level: loud}"), []string{"CARETAKER_SCHEDULER_ENABLED=maybe"})
	assert.That(t, err != nil && strings.Count(err.Error(), "\n") == 4 &&
		strings.Contains(err.Error(), "databases.main.url is required"), "got %v, want five lines", err)
	_, err = loadWork(write(t, "tls: {cert_file: a}\nweb: {trace_url: x}\nb: 2\nlisten: 0.0.0.0:1\n"+
		"databases: {main: {url: mysql://u:secret@db/z}, ci: {url: postgres://127.0.0.1:notaport/x}}"), nil)
	places := ""
	for line := range strings.Lines(err.Error()) {
		place, _, _ := strings.Cut(line[strings.Index(line, "c.yml:")+len("c.yml:"):], ":")
		places += place + " "
	}
	_, unread := loadWork("/nowhere/c.yml", nil)
	assert.That(t, unread != nil && !strings.Contains(unread.Error(), "is required"), "of a file that cannot be read: %v", unread)
	assert.That(t, places == "1 2 3 5 5 " && !strings.Contains(err.Error(), "secret"), "the lines are %s: %v", places, err)
}

func TestLoad_AcceptsListeningEverywhereWithProtectionAndVariablesOfOthers(t *testing.T) {
	t.Parallel()
	const everywhere, others = "CARETAKER_LISTEN=0.0.0.0:50051", "CARETAKER_SERVICE_HOST=10.0.0.1,CARETAKER_PORT=tcp://10.0.0.1:50051," +
		"CARETAKER_SERVICE_PORT_GRPC=50051,CARETAKER_PORT_50051_TCP_ADDR=10.0.0.1,CARETAKER_DATABASES_SERVICE_HOST=10.0.0.2,CARETAKER_IMAGE=x," +
		"CARETAKER=x," + AddressVariable + "=127.0.0.1:1"
	for _, environ := range []string{
		everywhere + ",CARETAKER_INSECURE=true", everywhere + ",CARETAKER_AUTH_TOKEN=t", everywhere + ",CARETAKER_AUTH_TOKEN_FILE=t",
		everywhere + ",CARETAKER_AUTH_TOKENS_FILE=t", "CARETAKER_LISTEN=localhost:1", "CARETAKER_LISTEN=[::1]:1", "CARETAKER_LISTEN=127.8.8.8:1", others,
		"CARETAKER_LISTEN=127.0.0.1:0,CARETAKER_METRICS_LISTEN=127.0.0.1:0", "CARETAKER_LISTEN=127.0.0.2:9464,CARETAKER_METRICS_LISTEN=127.0.0.1:9464",
	} {
		if _, err := loadWork("", append(strings.Split(environ, ","), mainURL)); err != nil {
			t.Errorf("%s: %v", environ, err)
		}
	}
}

func TestLoad_NamesVariablesThatLookLikeKeys(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"CARETAKER_LISTENN=x":             "CARETAKER_LISTENN: unknown configuration key (did you mean CARETAKER_LISTEN?)",
		"CARETAKER_DATABASE_MAIN_URL=x":   "did you mean CARETAKER_DATABASES_MAIN_URL?",
		"CARETAKER_DATABASES_OTHER=x":     "CARETAKER_DATABASES_OTHER: unknown configuration key",
		"CARETAKER_DATABASES_1_URL=x":     "CARETAKER_DATABASES_1_URL: unknown configuration key: a database name must",
		"CARETAKER_DATABASES_URL=x":       "unknown configuration key: use CARETAKER_DATABASES_<NAME>_URL",
		"CARETAKER_WORKERS_ENABLED=false": "unknown configuration key: use CARETAKER_WORKERS_<NAME>_ENABLED",
		"CARETAKER_ADDDRESS=x":            "did you mean CARETAKER_ADDRESS?",
		"CARETAKER_SCHEDULER_ENABLED=no":  `CARETAKER_SCHEDULER_ENABLED: "no" is neither true nor false`,
	} {
		_, err := loadWork("", []string{mainURL, entry})
		fails(t, err, want, entry)
	}
}

func TestLoad_NeedsMain(t *testing.T) {
	t.Parallel()
	_, err := loadWork("", []string{"CARETAKER_DATABASES_CI_URL=x"})
	fails(t, err, "CARETAKER_DATABASES_MAIN_URL")
	_, err = loadWork("no-such-file.yml", []string{mainURL})
	fails(t, err, "no-such-file.yml")
}

func TestLoad_NeverRepeatsASecret(t *testing.T) {
	t.Parallel()
	_, err := loadWork(write(t, "auth: {token: 123456}\ndatabases: {main: {url: {secret: 1}}}"), []string{mainURL})
	assert.That(t, err != nil && !strings.Contains(err.Error(), "123456") &&
		!strings.Contains(err.Error(), "secret@"), "got %v", err)
}

func TestOpenTelemetry_NamesEndpointsThatNothingCanBeSentTo(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::":                                                                             "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=nonsense":                                                                        "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_TRACES_EXPORTER=otlp":                                                   "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=localhost:4318":                                                           "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://":                                                                 "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_SDK_DISABLED=true":                                                      "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_TRACES_EXPORTER=none,OTEL_METRICS_EXPORTER=console":                     "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=:::,OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a:4318,OTEL_METRICS_EXPORTER=none": "",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a:4318,OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://b:4318," +
			"OTEL_EXPORTER_OTLP_ENDPOINT=:::": "",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=a,OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=b": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an http or https URL (not shown, because it may contain a password): use a URL such as http://localhost:4318\nOTEL_EXPORTER_OTLP_METRICS_ENDPOINT is not an http or https URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318/base":                     "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=unix:///run/otel.sock":                          "",
	} {
		c := assert.Must(Environment(append(strings.Split(environ, ","), mainURL)).Load(""))(t)
		err := c.OpenTelemetry.Mistake
		assert.That(t, (want == "") == (err == nil) && (err == nil || strings.HasPrefix(err.Error(), want)),
			"%s: said %v, want %q", environ, err, want)
	}
}

func TestOpenTelemetry_ExportsOnlyWhatIsAskedFor(t *testing.T) {
	t.Parallel()
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
		got := openTelemetry([]string{environ})
		assert.That(t, reflect.DeepEqual(got, want), "%s: got %+v, want %+v", environ, got, want)
	}
}

func TestActsOnPage_IsOnForALoopbackAddressUnlessItIsSet(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, c := range []struct {
		listen string
		set    *bool
		want   bool
	}{
		{"127.0.0.1:8080", nil, true},
		{"0.0.0.0:8080", nil, false},
		{"", nil, false},
		{"0.0.0.0:8080", &yes, true},
		{"127.0.0.1:8080", &no, false},
	} {
		if got := (&Config{WebListen: c.listen, WebActions: c.set}).ActsOnPage(); got != c.want {
			t.Errorf("%s: got %t", c.listen, got)
		}
	}
}
