package config

import (
	"fmt"
	"regexp"
	"strings"
)

// prefix of the variables that set keys.
const prefix = "CARETAKER_"

// kubernetes matches the variables that Kubernetes sets in a pod for services that happen to be called caretaker.
const kubernetes = `^CARETAKER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`

// environmentValues reads the variables that set keys. A variable that looks like one of them and is none is a mistake:
// it begins like a section of the configuration, or is a slip of the pen away from a key. Others are somebody else's.
func environmentValues(environ []string, keys []key) (map[string]value, []error) {
	values := map[string]value{}
	var mistakes []error
	byVariable := map[string]string{}
	names := make([]string, 0, len(keys))
	for _, k := range keys {
		byVariable[variable(k.path)] = k.path
		names = append(names, variable(k.path))
	}
	foreign := regexp.MustCompile(kubernetes)
	for _, entry := range environ {
		name, content, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if path, known := byVariable[name]; known {
			values[path] = value{content, name}
			continue
		}
		near := nearest(name, names)
		switch {
		case foreign.MatchString(name), near == "" && !inSection(name, keys):
		case near == "":
			mistakes = append(mistakes, fmt.Errorf("%s: no such configuration key", name))
		default:
			mistakes = append(mistakes, fmt.Errorf("%s: no such configuration key, did you mean %s?", name, near))
		}
	}
	return values, mistakes
}

// inSection says whether the variable's name begins like those of a section with several keys.
func inSection(name string, keys []key) bool {
	for _, k := range keys {
		section, _, nested := strings.Cut(k.path, ".")
		if nested && strings.HasPrefix(name, variable(section)+"_") {
			return true
		}
	}
	return false
}

// OpenTelemetry is what the standard variables of OpenTelemetry ask for. The variables that say how, such as
// OTEL_EXPORTER_OTLP_PROTOCOL, are read by the SDK itself.
type OpenTelemetry struct {
	// Disabled by OTEL_SDK_DISABLED.
	Disabled bool
	// Traces and Metrics are to be exported: an exporter or an OTLP endpoint is set. Metrics does not count
	// "prometheus", which is served on metrics_listen in any case.
	Traces, Metrics bool
}

func openTelemetry(environ []string) (o OpenTelemetry) {
	set := map[string]string{}
	for _, entry := range environ {
		name, content, _ := strings.Cut(entry, "=")
		set[name] = strings.TrimSpace(content)
	}
	o.Disabled = strings.EqualFold(set["OTEL_SDK_DISABLED"], "true")
	endpoint := set["OTEL_EXPORTER_OTLP_ENDPOINT"]
	o.Traces = set["OTEL_TRACES_EXPORTER"] != "" || endpoint+set["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] != ""
	switch set["OTEL_METRICS_EXPORTER"] {
	case "prometheus":
	case "":
		o.Metrics = endpoint+set["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] != ""
	default:
		o.Metrics = true
	}
	return o
}

// nearest is the candidate with the smallest edit distance, if that is a slip of the pen: at most a fifth of the name.
func nearest(name string, candidates []string) string {
	best, smallest := "", max(2, len(name)/5)+1
	for _, c := range candidates {
		if d := distance(name, c); d < smallest {
			best, smallest = c, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
