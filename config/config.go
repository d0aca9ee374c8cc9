// Package config reads the configuration: a YAML file, over it environment variables, below both the defaults.
//
// What it guarantees:
//
//   - Nothing is ignored. An unknown key, a key given twice, a value of another type, a limit of zero: each is an error
//     that names the key, where it stands, and what is allowed. All mistakes are reported at once.
//   - The file is not needed: every key has an environment variable, and main's URL is the only one without a default.
//   - No message repeats a URL or a token.
//
// keys.go has the list of all keys. Contract section 4 fixes their names and defaults.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Config is the whole configuration. Zero limits and empty schedules stand for the worker's defaults.
type Config struct {
	// Listen is the gRPC address, MetricsListen the one of Prometheus; empty: no metrics are served.
	Listen, MetricsListen string
	// WebListen is the address of the status page; empty: there is none. WebTraceURL is where a trace is shown, with
	// {trace_id} in it; empty: nowhere.
	WebListen, WebTraceURL string
	// Insecure allows Listen to be reachable from other hosts with neither TLS nor Auth.
	Insecure bool
	TLS      TLS
	Auth     Auth
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// LogFormat is json or text; empty: text on a terminal, else json.
	LogFormat string
	// Databases are those with a URL, in the order of the rotation: main, ci, sec.
	Databases        []Database
	SchedulerEnabled bool
	// JobsEnabled lets deferred jobs be worked here; they are queued in any case.
	JobsEnabled             bool
	Load                    LoadLimits
	LooseForeignKeysCleanup LooseForeignKeysCleanup
	GhostUserMigration      GhostUserMigration
	AdjournedGroupDeletion  AdjournedGroupDeletion
	PlaceholderUserCleanup  PlaceholderUserCleanup
	InactiveTokenDeletion   InactiveTokenDeletion
	// HistoryKeep is how long runs and the ledger of fires are kept.
	HistoryKeep time.Duration
	// OpenTelemetry is what the standard variables ask for.
	OpenTelemetry OpenTelemetry
	// places are where the values of the file stand, by key: those that stand for something.
	places map[string]string
}

// TLS names PEM files.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile, if set, demands client certificates signed by one of its authorities.
	ClientCAFile string
}

// Auth is the bearer token that every call has to carry; at most one of the two is set.
type Auth struct{ Token, TokenFile string }

// Database is where a configured database is.
type Database struct{ Name, URL, ReplicaURL string }

// LoadLimits say from where on a database counts as loaded; 0 is off.
type LoadLimits struct {
	MaxReplicaLag   time.Duration
	IgnoredReplicas []string
	// MaxWALRate is in bytes a second, MaxWALArchiveBacklog in bytes.
	MaxWALRate, MaxWALArchiveBacklog     int64
	MaxLockWait, MaxAutovacuum, Patience time.Duration
}

// Worker is what every worker has.
type Worker struct {
	Schedule string
	Enabled  bool
	// CatchUp makes up for missed fires; nil: by the worker's default.
	CatchUp *bool
}

// LooseForeignKeysCleanup configures the worker loose_foreign_keys_cleanup.
type LooseForeignKeysCleanup struct {
	Worker
	// Definitions is the path of the definitions file; empty: the worker is not configured.
	Definitions string
	// Rotation is minute or all: which databases a fire works; empty: minute.
	Rotation               string
	BatchSize              int
	MaxDeletes, MaxUpdates int64
	MaxRuntime             time.Duration
}

// GhostUserMigration configures the worker ghost_user_migration.
type GhostUserMigration struct {
	Worker
	Limit      int
	MaxRuntime time.Duration
}

// AdjournedGroupDeletion configures the worker adjourned_group_deletion.
type AdjournedGroupDeletion struct {
	Worker
	BatchSize int
	Interval  time.Duration
}

// PlaceholderUserCleanup configures the worker placeholder_user_cleanup.
type PlaceholderUserCleanup struct {
	Worker
	MaxAttempts, BatchSize int
	RetryPeriod, Interval  time.Duration
}

// InactiveTokenDeletion configures the worker inactive_token_deletion.
type InactiveTokenDeletion struct {
	Worker
	BatchSize                 int
	MaxRuntime, ContinueAfter time.Duration
	// MaxQueued is how many users may wait for their deletion; 0: no limit.
	MaxQueued int
}

// DatabaseNames are the databases there can be, in the order of the rotation.
func DatabaseNames() []string { return []string{"main", "ci", "sec"} }

// Load reads the file, which may be "" for none, and the environment. Its error lists every mistake, one a line.
func Load(file string) (*Config, error) {
	return load(file, os.Environ())
}

// LoadPartial is Load for commands that bring their own databases: main's URL may be missing.
func LoadPartial(file string) (*Config, error) {
	return read(file, os.Environ())
}

func load(file string, environ []string) (*Config, error) {
	c, err := read(file, environ)
	if err != nil {
		return nil, err
	}
	if len(c.Databases) == 0 || c.Databases[0].Name != "main" {
		return nil, errors.New("databases.main.url is required: set it in the file given with --config, or set " +
			Variable("databases.main.url"))
	}
	return c, nil
}

// read is load without the check that a database is there.
func read(file string, environ []string) (*Config, error) {
	c := &Config{places: map[string]string{}}
	keys := c.keys()
	values, mistakes := fileValues(file, keys)
	fromEnvironment, more := environmentValues(environ, keys)
	mistakes = append(mistakes, more...)
	for _, k := range keys {
		v, set := fromEnvironment[k.path]
		if set && v.text == "" && k.set("") != nil {
			// As compose files make of a variable that nobody has set.
			set = false
		}
		if !set {
			if v, set = values[k.path]; set {
				c.places[k.path] = v.where
			}
		}
		if !set {
			v = value{text: k.byDefault}
		}
		if !set && k.byDefault == "" {
			continue
		}
		if err := k.set(v.text); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", v.where, err))
		}
	}
	c.OpenTelemetry = openTelemetry(environ)
	c.Databases = slices.DeleteFunc(c.Databases, func(d Database) bool { return d.URL == "" && d.ReplicaURL == "" })
	mistakes = append(mistakes, c.contradictions()...)
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return c, nil
}

// Where names a key in a message: with its place if its value comes from the file, else with its variable.
func (c *Config) Where(path string) string {
	if place, is := c.places[path]; is {
		return place
	}
	return path + " (" + Variable(path) + ")"
}

// Validate reports what does not fit together, after a command has changed keys.
func (c *Config) Validate() error { return errors.Join(c.contradictions()...) }

// contradictions are mistakes that no single key shows.
func (c *Config) contradictions() (found []error) {
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		found = append(found, errors.New("tls.cert_file and tls.key_file belong together: set both or none"))
	}
	if c.TLS.ClientCAFile != "" && c.TLS.CertFile == "" {
		found = append(found, errors.New("tls.client_ca_file needs tls.cert_file and tls.key_file"))
	}
	if c.Auth.Token != "" && c.Auth.TokenFile != "" {
		found = append(found, errors.New("auth.token and auth.token_file: set one of them"))
	}
	for _, d := range c.Databases {
		if d.URL == "" {
			found = append(found, fmt.Errorf("databases.%s.replica_url is set without databases.%s.url", d.Name, d.Name))
		}
	}
	for _, l := range []struct{ key, address string }{{"listen", c.Listen}, {"web_listen", c.WebListen}} {
		if l.address != "" && !c.Insecure && c.TLS.CertFile == "" && c.Auth == (Auth{}) && !Loopback(l.address) {
			found = append(found, fmt.Errorf("%s: %q can be reached from other hosts: configure tls (tls.cert_file, "+
				"tls.key_file) or auth (auth.token_file), or say insecure: true, or listen on 127.0.0.1", l.key, l.address))
		}
	}
	return found
}

// Loopback says whether only this host can reach the address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
