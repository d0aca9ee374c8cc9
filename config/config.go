// Package config reads the configuration: environment variables override a YAML file, which
// overrides the defaults.
//
// It guarantees:
//
//   - Nothing is ignored. Each unknown or duplicate key, value of a wrong type or limit of zero is
//     an error. It has the key, its place and the allowed values. All errors are reported at once.
//   - The file is optional: every key has an environment variable, and only main's URL is required.
//   - No message repeats a URL or a token.
//
// The keys are the tags of struct fields, in [Config] and in the structs that the caller passes to
// [Load].
//
//	// BatchSize is how many records are worked at a time.
//	BatchSize int `key:"batch_size" default:"500" max:"10000"`
//
// The tags are
//
//   - key: the key's name. For a struct it is the name of its section. The keys of an embedded
//     struct belong to the outer one, and the embedding's tag may set other defaults by their keys.
//   - default: the default in the syntax of the file.
//   - example: a value for the installed file, where every key is commented out. Without an example
//     that file has the default.
//   - min and max: the bounds of a number, a duration or a size. Without min they are at least 1,
//     or more than 0.
//   - off: zero or an empty text is also a valid value, which switches something off.
//   - of: the allowed values of a text, or of each value of a mapping.
//   - unit:"bytes": the number is a size such as 64MB.
//
// A struct with variable sections has a method Sections() iter.Seq2[string, any], which returns
// pointers to structs by their keys. A method Check(key, text string) error of the struct checks
// what tags cannot express. A method Unused(key string) string of a struct passed to [Load] names
// keys that have no effect with the values of others.
// The comment of a field is its documentation in docs/reference/configuration.md.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Config has the settings of the process. The structs of the workers and of other parts are passed
// to [Load].
type Config struct {
	// Listen is the gRPC address. An address that other hosts can reach requires `tls`, `auth` or
	// `insecure: true`.
	Listen string `key:"listen" default:"127.0.0.1:50051"`
	// MetricsListen is the address of the Prometheus metrics. The restrictions on `listen` also apply.
	MetricsListen string `key:"metrics_listen" default:"127.0.0.1:9464" off:""`
	// WebListen is the address of the status page, such as 127.0.0.1:8080. The restrictions on
	// `listen` also apply.
	WebListen string `key:"web_listen" example:"127.0.0.1:8080" off:""`
	// WebActions lets operators and admins start and stop runs, and protect users and groups, on the
	// status page. If not set, it is true if `web_listen` is a loopback address.
	WebActions *bool `key:"web_actions" example:"true"`
	// WebTraceURL is the URL template of the trace links on the status page, such as
	// https://jaeger.example/trace/{trace_id}.
	WebTraceURL string `key:"web.trace_url" example:"https://jaeger.example/trace/{trace_id}"`
	// Insecure allows non-loopback addresses even if `tls` and `auth` are not set.
	Insecure bool `key:"insecure" default:"false"`
	TLS      TLS  `key:"tls"`
	Auth     Auth `key:"auth"`
	// LogLevel is the minimum log level.
	LogLevel string `key:"log.level" default:"info" of:"debug info warn error"`
	// LogFormat is `json` (one object per line) or `text`. If not set, `text` on a terminal, otherwise
	// `json`.
	LogFormat string `key:"log.format" of:"json text" example:"json"`
	// Databases are those with a URL, in the order of the rotation: main, ci, sec, then the others by
	// name.
	Databases []Database
	// SchedulerEnabled lets this server start scheduled runs.
	SchedulerEnabled bool `key:"scheduler.enabled" default:"true"`
	// JobsEnabled lets this server run jobs. If false, the server still queues jobs.
	JobsEnabled bool `key:"jobs.enabled" default:"true"`
	// OpenTelemetry is what the standard variables ask for.
	OpenTelemetry OpenTelemetry
}

// TLS names PEM files.
type TLS struct {
	// CertFile is the PEM file with the server's certificate. Requires `tls.key_file`.
	CertFile string `key:"cert_file" example:"/etc/caretaker/server.crt"`
	// KeyFile is the PEM file with the certificate's key.
	KeyFile string `key:"key_file" example:"/etc/caretaker/server.key"`
	// ClientCAFile is the PEM file with client certificate authorities. If set, every client must
	// present a certificate signed by one of these authorities.
	ClientCAFile string `key:"client_ca_file" example:"/etc/caretaker/clients-ca.crt"`
}

// Auth assigns permissions. At most one of the first two is set.
type Auth struct {
	// Token is the bearer token of an admin. If any token is configured, every call requires a token.
	Token string `key:"token"`
	// TokenFile is the file with the admin's token. Use it instead of `auth.token`.
	TokenFile string `key:"token_file"`
	// TokensFile is the file with a YAML list of tokens, each with name, sha256 and [role](../guides/security.md#roles).
	TokensFile string `key:"tokens_file" example:"/etc/caretaker/tokens.yml"`
	// Certificates are the roles of client certificates, by common name or alternative name.
	// If not set, every verified client is an admin. The environment variable must contain JSON.
	// Requires `tls.client_ca_file`.
	Certificates map[string]string `key:"certificates" of:"viewer operator admin" example:"{alice@example.com: operator}"`
}

// HasTokens reports whether calls must carry a token.
func (a Auth) HasTokens() bool { return a.Token != "" || a.TokenFile != "" || a.TokensFile != "" }

// Load reads the file, "" for none, and the environment into a Config and the structs that into
// points to. Its error lists every mistake, one per line, in the file's order. Load also returns
// the readable settings.
func (e Environment) Load(file string, into ...any) (*Config, error) {
	c, mistakes := read(file, e, into...)
	// An unreadable file may have the URL.
	unread := slices.ContainsFunc(mistakes, func(m mistake) bool { return m.line == unreadLine })
	if !unread && (len(c.Databases) == 0 || c.Databases[0].Name != "main") {
		mistakes = append(mistakes, mistake{lastLine, errors.New("databases.main.url is required: set " +
			"it in the file given with --config, or set " + Variable("databases.main.url"))})
	}
	return c, joined(mistakes)
}

// LoadPartial is Load for commands that open their own databases: main's URL may be missing.
func (e Environment) LoadPartial(file string, into ...any) (*Config, error) {
	c, mistakes := read(file, e, into...)
	return c, joined(mistakes)
}

// LoadPartial reads only the file, without an environment.
func LoadPartial(file string, into ...any) (*Config, error) {
	return Environment(nil).LoadPartial(file, into...)
}

// mistake is an error with its line in the file. The line is lastLine for errors outside the file,
// and unreadLine if the file is unreadable.
type mistake struct {
	line int
	err  error
}

const (
	lastLine   = math.MaxInt
	unreadLine = -1
)

// joined returns the mistakes in one error, by their lines.
func joined(mistakes []mistake) error {
	slices.SortStableFunc(mistakes, func(a, b mistake) int { return cmp.Compare(a.line, b.line) })
	var all []error
	for _, m := range mistakes {
		all = append(all, m.err)
	}
	return errors.Join(all...)
}

// read is Load that does not require a database.
func read(file string, environ []string, into ...any) (*Config, []mistake) {
	c := &Config{}
	document, mistakes := readDocument(file)
	names := append(databasesInFile(document), databasesInEnvironment(environ)...)
	keys := c.keys(inRotation(names), into...)
	inFile, more := fileValues(file, document, keys)
	mistakes = append(mistakes, more...)
	inEnvironment, wrong := environmentValues(environ, keys)
	for _, err := range wrong {
		mistakes = append(mistakes, mistake{lastLine, err})
	}
	used := map[string]value{}
	for _, k := range keys {
		v, given := inEnvironment[k.Path]
		if given && v.text == "" && k.set("") != nil {
			given = false // Compose files pass unset variables as empty.
		}
		if !given {
			v, given = inFile[k.Path]
		}
		if !given {
			v = value{text: k.Default, line: lastLine}
		}
		used[k.Path] = v
		if !given && k.Default == "" {
			continue
		}
		if err := k.set(v.text); err != nil {
			mistakes = append(mistakes, mistake{v.line, fmt.Errorf("%s: %w", v.where, err)})
			if k.Owner == reflect.TypeFor[Database]() {
				k.to.SetString(v.text) // The value is wrong, but not missing.
			}
		}
	}
	fill(keys)
	mistakes = append(mistakes, unusedKeys(used, into)...)
	c.OpenTelemetry = openTelemetry(environ)
	c.Databases = slices.DeleteFunc(c.Databases,
		func(d Database) bool { return d.URL == "" && d.ReplicaURL == "" })
	for _, found := range c.contradictions() {
		at := used[found.key]
		if at.line != lastLine {
			found.err = fmt.Errorf("%s:%d: %w", file, at.line, found.err)
		}
		mistakes = append(mistakes, mistake{at.line, found.err})
	}
	return c, mistakes
}

// unusedReporter is a struct in which other values can disable keys.
type unusedReporter interface {
	// Unused returns the reason why a key has no effect, "" if it has one.
	Unused(key string) string
}

// unusedKeys returns the mistakes of set keys without effect.
func unusedKeys(used map[string]value, into []any) (mistakes []mistake) {
	for _, s := range into {
		owner, ok := s.(unusedReporter)
		if !ok {
			continue
		}
		for path, v := range used {
			// Defaults have no place.
			if why := owner.Unused(path); v.where != "" && why != "" {
				mistakes = append(mistakes, mistake{v.line, fmt.Errorf("%s: %s", v.where, why)})
			}
		}
	}
	slices.SortFunc(mistakes, func(a, b mistake) int { return cmp.Compare(a.err.Error(), b.err.Error()) })
	return mistakes
}

// Keys returns the keys of c and of the other structs. For databases they are main's keys, and the
// keys of any other database with <name> for its name.
func (c *Config) Keys(into ...any) []Key {
	return c.keys([]string{GitLabDatabases()[0], anyName}, into...)
}

// keys returns the keys of c, with the named databases, and of the other structs.
func (c *Config) keys(databases []string, into ...any) []Key {
	keys := Keys(c)
	c.Databases = nil
	for _, name := range databases {
		c.Databases = append(c.Databases, Database{Name: name})
	}
	for i := range c.Databases {
		keys = append(keys, keysOf("databases."+c.Databases[i].Name+".", &c.Databases[i])...)
	}
	return append(keys, Keys(into...)...)
}

// ActsOnPage reports whether clients can make changes on the status page.
func (c *Config) ActsOnPage() bool {
	if c.WebActions == nil {
		return Loopback(c.WebListen)
	}
	return *c.WebActions
}

// Check returns an error for invalid addresses.
func (c *Config) Check(key, text string) error {
	examples := map[string]string{
		"listen": "127.0.0.1:50051", "metrics_listen": "127.0.0.1:9464", "web_listen": "127.0.0.1:8080",
	}
	if example, ok := examples[key]; ok {
		return CheckAddress(text, example)
	}
	if key != "web.trace_url" || text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
		!strings.Contains(text, "{trace_id}") {
		return fmt.Errorf("%q is not an http or https URL that contains {trace_id}, such as "+
			"https://jaeger.example/trace/{trace_id}", text)
	}
	return nil
}

// CheckAddress returns an error, with an example, for an invalid listening address.
func CheckAddress(s, example string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not an address of the form HOST:PORT (port 0 to 65535), such as %s", s, example)
	}
	return nil
}

// Validate reports contradictory settings after a command has changed some.
func (c *Config) Validate() error {
	var all []error
	for _, found := range c.contradictions() {
		all = append(all, found.err)
	}
	return errors.Join(all...)
}

// contradiction is a mistake that concerns several keys, at least one of which is set.
type contradiction struct {
	key string
	err error
}

// contradictions returns the mistakes that concern several keys.
func (c *Config) contradictions() (found []contradiction) {
	add := func(key, format string, args ...any) {
		found = append(found, contradiction{key, fmt.Errorf(format, args...)})
	}
	if c.TLS.CertFile != "" && c.TLS.KeyFile == "" {
		add("tls.cert_file", "tls.cert_file and tls.key_file belong together: set both or neither")
	}
	if c.TLS.CertFile == "" && c.TLS.KeyFile != "" {
		add("tls.key_file", "tls.cert_file and tls.key_file belong together: set both or neither")
	}
	if c.TLS.ClientCAFile != "" && c.TLS.CertFile == "" {
		add("tls.client_ca_file", "tls.client_ca_file requires tls.cert_file and tls.key_file")
	}
	if c.Auth.Token != "" && c.Auth.TokenFile != "" {
		add("auth.token_file", "auth.token and auth.token_file are mutually exclusive: set only one of them")
	}
	if len(c.Auth.Certificates) > 0 && c.TLS.ClientCAFile == "" {
		add("auth.certificates", "auth.certificates requires tls.client_ca_file, the file of the authorities that sign the certificates")
	}
	if c.WebActions != nil && *c.WebActions && c.WebListen != "" && !Loopback(c.WebListen) &&
		c.TLS.ClientCAFile == "" && !c.Auth.HasTokens() {
		add("web_actions", "web_actions requires auth.tokens_file, auth.token_file or "+
			"tls.client_ca_file, because other hosts can reach web_listen")
	}
	for _, d := range c.Databases {
		if d.URL == "" {
			key := "databases." + d.Name + ".replica_url"
			add(key, "%s is set without databases.%s.url: set both (to configure a "+
				"database named %s_replica, set its url in the configuration file)", key, d.Name, d.Name)
		}
	}
	protected := c.Insecure || c.TLS.CertFile != "" || c.Auth.HasTokens()
	listeners := [][2]string{
		{"listen", c.Listen}, {"metrics_listen", c.MetricsListen}, {"web_listen", c.WebListen},
	}
	for i, l := range listeners {
		key, address := l[0], l[1]
		for _, other := range listeners[:i] {
			if sameAddress(address, other[1]) {
				add(key, "%s: %s uses the same address %s: set a different port", key, other[0], address)
			}
		}
		if address != "" && !protected && !Loopback(address) {
			add(key, "%s: other hosts can reach %q: set tls.cert_file and tls.key_file, set "+
				"auth.tokens_file or auth.token_file, listen on 127.0.0.1, or set insecure: true to allow "+
				"this address", key, address)
		}
	}
	return found
}

// sameAddress reports whether one process cannot listen on both addresses HOST:PORT.
func sameAddress(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	every := func(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }
	same := hostA == hostB || every(hostA) || every(hostB) || Loopback(a) && Loopback(b) &&
		(strings.EqualFold(hostA, "localhost") || strings.EqualFold(hostB, "localhost"))
	return same && portA == portB && strings.Trim(portA, "0") != ""
}

// Loopback reports whether only this host can reach an address HOST:PORT.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
