package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of a value, as an error message calls it.
type kind string

const (
	text     kind = "text"
	boolean  kind = "true or false"
	integer  kind = "a whole number"
	duration kind = "a duration such as 30s or 2m"
	size     kind = "a size such as 64MB or 4GB"
)

// key is one configuration key.
type key struct {
	// path is the key's name: its path in the file, joined by dots.
	path string
	kind kind
	// byDefault is the default as it would be written; empty: none, or the worker's own.
	byDefault string
	set       func(string) error
}

// Variable is the environment variable of a key.
func Variable(path string) string {
	return "CARETAKER_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// keys lists every key, each with where its value goes. A new worker adds one line.
func (c *Config) keys() []key {
	c.Databases = nil
	for _, name := range DatabaseNames() {
		c.Databases = append(c.Databases, Database{Name: name})
	}
	keys := []key{
		{"listen", text, "127.0.0.1:50051", address(&c.Listen, "127.0.0.1:50051")},
		{"metrics_listen", text, "127.0.0.1:9464", optionalAddress(&c.MetricsListen, "127.0.0.1:9464")},
		{"web_listen", text, "", optionalAddress(&c.WebListen, "127.0.0.1:8080")},
		{"web.trace_url", text, "", traceURL(&c.WebTraceURL)},
		{"insecure", boolean, "false", truth(&c.Insecure)},
		{"tls.cert_file", text, "", verbatim(&c.TLS.CertFile)},
		{"tls.key_file", text, "", verbatim(&c.TLS.KeyFile)},
		{"tls.client_ca_file", text, "", verbatim(&c.TLS.ClientCAFile)},
		{"auth.token", text, "", verbatim(&c.Auth.Token)},
		{"auth.token_file", text, "", verbatim(&c.Auth.TokenFile)},
		{"log.level", text, "info", oneOf(&c.LogLevel, "debug", "info", "warn", "error")},
		{"log.format", text, "", oneOf(&c.LogFormat, "json", "text")},
		{"scheduler.enabled", boolean, "true", truth(&c.SchedulerEnabled)},
		{"jobs.enabled", boolean, "true", truth(&c.JobsEnabled)},
		{"history.keep", duration, "720h", durationIn(&c.HistoryKeep, minHistory, 10*year)},
	}
	for i := range c.Databases {
		d := &c.Databases[i]
		keys = append(keys,
			key{"databases." + d.Name + ".url", text, "", verbatim(&d.URL)},
			key{"databases." + d.Name + ".replica_url", text, "", verbatim(&d.ReplicaURL)})
	}
	keys = append(keys, c.Load.keys("load.")...)
	keys = append(keys, c.LooseForeignKeysCleanup.keys("workers.loose_foreign_keys_cleanup.")...)
	keys = append(keys, c.GhostUserMigration.keys("workers.ghost_user_migration.")...)
	keys = append(keys, c.AdjournedGroupDeletion.keys("workers.adjourned_group_deletion.")...)
	keys = append(keys, c.PlaceholderUserCleanup.keys("workers.placeholder_user_cleanup.")...)
	return append(keys, c.InactiveTokenDeletion.keys("workers.inactive_token_deletion.")...)
}

func (w *Worker) keys(prefix string) []key {
	return []key{
		{prefix + "schedule", text, "", verbatim(&w.Schedule)},
		{prefix + "enabled", boolean, "true", truth(&w.Enabled)},
		{prefix + "catch_up", boolean, "", optionalTruth(&w.CatchUp)},
	}
}

func (w *LooseForeignKeysCleanup) keys(prefix string) []key {
	return append(w.Worker.keys(prefix),
		key{prefix + "definitions", text, "", verbatim(&w.Definitions)},
		key{prefix + "rotation", text, "minute", oneOf(&w.Rotation, "minute", "all")},
		key{prefix + "batch_size", integer, "", numberTo(&w.BatchSize, mostInBatch)},
		key{prefix + "max_deletes", integer, "", numberTo(&w.MaxDeletes, mostRows)},
		key{prefix + "max_updates", integer, "", numberTo(&w.MaxUpdates, mostRows)},
		key{prefix + "max_runtime", duration, "", durationTo(&w.MaxRuntime, day)})
}

func (w *GhostUserMigration) keys(prefix string) []key {
	return append(w.Worker.keys(prefix),
		key{prefix + "limit", integer, "", numberTo(&w.Limit, mostUsers)},
		key{prefix + "max_runtime", duration, "", durationTo(&w.MaxRuntime, day)})
}

func (w *PlaceholderUserCleanup) keys(prefix string) []key {
	return append(w.Worker.keys(prefix),
		key{prefix + "max_attempts", integer, "", numberTo(&w.MaxAttempts, mostAttempts)},
		key{prefix + "batch_size", integer, "", numberTo(&w.BatchSize, mostInBatch)},
		key{prefix + "retry_period", duration, "", durationTo(&w.RetryPeriod, year)},
		key{prefix + "interval", duration, "", durationTo(&w.Interval, day)})
}

func (w *AdjournedGroupDeletion) keys(prefix string) []key {
	return append(w.Worker.keys(prefix),
		key{prefix + "batch_size", integer, "", numberTo(&w.BatchSize, mostInBatch)},
		key{prefix + "interval", duration, "", durationTo(&w.Interval, day)})
}

func (w *InactiveTokenDeletion) keys(prefix string) []key {
	return append(w.Worker.keys(prefix),
		key{prefix + "batch_size", integer, "", numberTo(&w.BatchSize, mostInBatch)},
		key{prefix + "max_runtime", duration, "", durationTo(&w.MaxRuntime, day)},
		key{prefix + "continue_after", duration, "", durationTo(&w.ContinueAfter, day)},
		key{prefix + "max_queued", integer, "100000", orOff(&w.MaxQueued, "0", numberTo(&w.MaxQueued, mostQueued))})
}

func verbatim(to *string) func(string) error {
	return func(s string) error { *to = s; return nil }
}

// oneOf takes one of the words, in capitals, too.
func oneOf(to *string, allowed ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(allowed, strings.ToLower(s)) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(allowed, ", "))
		}
		*to = strings.ToLower(s)
		return nil
	}
}

func truth(to *bool) func(string) error {
	return func(s string) error {
		*to = strings.EqualFold(s, "true")
		if !*to && !strings.EqualFold(s, "false") {
			return wrong(s, boolean)
		}
		return nil
	}
}

func optionalTruth(to **bool) func(string) error {
	return func(s string) error {
		var set bool
		err := truth(&set)(s)
		if err == nil {
			*to = &set
		}
		return err
	}
}

// CheckAddress says what is wrong with an address to listen on, and gives an example of one.
func CheckAddress(s, example string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not an address such as %s", s, example)
	}
	return nil
}

func address(to *string, example string) func(string) error {
	return func(s string) error {
		if err := CheckAddress(s, example); err != nil {
			return err
		}
		*to = s
		return nil
	}
}

func optionalAddress(to *string, example string) func(string) error {
	required := address(to, example)
	return func(s string) error {
		if s == "" {
			*to = ""
			return nil
		}
		return required(s)
	}
}

// traceURL takes the address of a trace, with a place for its id.
func traceURL(to *string) func(string) error {
	return func(s string) error {
		u, err := url.Parse(s)
		if s != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || !strings.Contains(s, "{trace_id}")) {
			return fmt.Errorf("%q is not an address such as https://jaeger.example/trace/{trace_id}", s)
		}
		*to = s
		return nil
	}
}

func wrong(s string, want kind) error { return fmt.Errorf("%q is not %s", s, want) }
