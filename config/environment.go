package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
)

// AddressVariable has the server's address for client commands. It is not a key, and serve ignores
// it.
const AddressVariable = "CARETAKER_ADDRESS"

// Environment is the environment of a command: one NAME=value per entry, as in os.Environ. The zero
// value is empty.
type Environment []string

// OfProcess returns the environment of this process. Only some libraries read it themselves:
// OpenTelemetry's exporters (OTEL_…), pgx (PG…), gRPC (proxies) and crypto/x509 (SSL_CERT_FILE). So
// does devdb, which starts PostgreSQL for caretaker dev (PATH, HOME, TMPDIR).
func OfProcess() Environment { return os.Environ() }

// get returns the value of a variable, "" if it is not set. The last entry of a name applies.
func (e Environment) get(name string) (value string) {
	for _, entry := range e {
		if found, ok := strings.CutPrefix(entry, name+"="); ok {
			value = found
		}
	}
	return value
}

// configDirectory returns the user's configuration directory, "" if it is unknown. It is
// os.UserConfigDir for this environment.
func (e Environment) configDirectory() string {
	home := e.get("HOME")
	if runtime.GOOS == "darwin" {
		if home == "" {
			return ""
		}
		return filepath.Join(home, "Library", "Application Support")
	}
	if directory := e.get("XDG_CONFIG_HOME"); directory != "" {
		if !filepath.IsAbs(directory) {
			return ""
		}
		return directory
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".config")
}

// Mistyped returns errors for variables that serve would refuse. It is for commands that do not
// read the configuration.
func (e Environment) Mistyped(into ...any) []error {
	keys := new(Config).keys(inRotation(databasesInEnvironment(e)), into...)
	_, mistakes := environmentValues(e, keys)
	return mistakes
}

// prefix begins the variables that set keys.
const prefix = "CARETAKER_"

// kubernetes matches the variables that Kubernetes sets in a pod for services named caretaker.
const kubernetes = `^CARETAKER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|` +
	`PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`

// environmentValues reads the variables that set keys. An unknown variable is an error if it begins
// like a section or resembles a key's variable. Other variables are not caretaker's.
func environmentValues(environ []string, keys []Key) (map[string]value, []error) {
	values := map[string]value{}
	var mistakes []error
	byVariable := map[string]string{}
	names := make([]string, 0, len(keys))
	for _, k := range keys {
		if inFileOnly(k.Path) {
			continue
		}
		byVariable[Variable(k.Path)] = k.Path
		names = append(names, Variable(k.Path))
	}
	clients := append(ClientVariables(), AddressVariable)
	foreign := regexp.MustCompile(kubernetes)
	for _, entry := range environ {
		name, content, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(clients, name) {
			continue
		}
		if path, ok := byVariable[name]; ok {
			values[path] = value{content, name, lastLine}
			continue
		}
		path := strings.Replace(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", ".", 1)
		if text := removed(path); text != "" {
			mistakes = append(mistakes, fmt.Errorf("%s: %s", name, text))
			continue
		}
		near, section := format.Nearest(name, append(names, clients...)), inSection(name, keys)
		switch bare := withoutName(name, keys); {
		case foreign.MatchString(name), near == "" && !section:
		case bare != "":
			mistakes = append(mistakes, fmt.Errorf("%s: unknown configuration key: use %s", name, bare))
		case strings.HasPrefix(name, prefix+"DATABASES_") && strings.HasSuffix(name, "_URL"):
			mistakes = append(mistakes, fmt.Errorf("%s: unknown configuration key: %s (in upper case in a variable)",
				name, nameRule))
		case near == "" || section && !strings.HasPrefix(near, sectionOf(name)):
			mistakes = append(mistakes, fmt.Errorf("%s: unknown configuration key", name))
		default:
			mistakes = append(mistakes, fmt.Errorf("%s: unknown configuration key (did you mean "+
				"%s?)", name, near))
		}
	}
	return values, mistakes
}

// inSection reports whether a variable's name begins like those of a section with several keys.
func inSection(name string, keys []Key) bool {
	for _, k := range keys {
		section, _, nested := strings.Cut(k.Path, ".")
		if nested && strings.HasPrefix(name, Variable(section)+"_") {
			return true
		}
	}
	return false
}

// sectionOf returns the first part of a variable's name, such as CARETAKER_WORKERS_.
func sectionOf(name string) string {
	section, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "_")
	return prefix + section + "_"
}

// withoutName returns the form of a variable whose worker or database name is missing, "" for none:
// CARETAKER_WORKERS_<NAME>_ENABLED for CARETAKER_WORKERS_ENABLED.
func withoutName(name string, keys []Key) string {
	for _, k := range keys {
		parts := strings.SplitN(k.Path, ".", 3)
		if len(parts) == 3 && name == Variable(parts[0]+"."+parts[2]) {
			return Variable(parts[0]) + "_<NAME>_" + strings.TrimPrefix(Variable(parts[2]), prefix)
		}
	}
	return ""
}
