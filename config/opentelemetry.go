package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// OpenTelemetry has the settings of OpenTelemetry's standard variables. The SDK itself reads the
// others, such as OTEL_EXPORTER_OTLP_PROTOCOL, and reports invalid ones.
type OpenTelemetry struct {
	// Disabled by OTEL_SDK_DISABLED.
	Disabled bool
	// Traces and Metrics are set if an exporter or an OTLP endpoint is. The exporter "prometheus"
	// does not count: it is served on metrics_listen in any case.
	Traces, Metrics bool
	// Propagators is OTEL_PROPAGATORS.
	Propagators string
	// Mistake is the error of an unusable endpoint, for which the SDK would use its default.
	Mistake error
}

func openTelemetry(environ []string) (o OpenTelemetry) {
	set := map[string]string{}
	for _, entry := range environ {
		name, content, _ := strings.Cut(entry, "=")
		set[name] = strings.TrimSpace(content)
	}
	o.Disabled = strings.EqualFold(set["OTEL_SDK_DISABLED"], "true")
	o.Propagators = set["OTEL_PROPAGATORS"]
	const common, traces, metrics = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	o.Traces = set["OTEL_TRACES_EXPORTER"]+set[common]+set[traces] != ""
	exporter := set["OTEL_METRICS_EXPORTER"]
	o.Metrics = exporter != "prometheus" && exporter+set[common]+set[metrics] != ""
	if o.Disabled {
		return o
	}
	otlp := func(exporter string) bool { return exporter == "" || strings.Contains(exporter, "otlp") }
	var used []string
	if o.Traces && otlp(set["OTEL_TRACES_EXPORTER"]) {
		used = append(used, firstSet(set, traces, common))
	}
	if o.Metrics && otlp(exporter) {
		used = append(used, firstSet(set, metrics, common))
	}
	for _, name := range slices.Compact(used) {
		u, err := url.Parse(set[name])
		if valid := err == nil && (u.Host != "" || u.Scheme == "unix"); set[name] != "" && !valid {
			// The message omits the value, because it may contain a password.
			o.Mistake = errors.Join(o.Mistake, fmt.Errorf("%s is not an http or https URL (not shown, because it may "+
				"contain a password): use a URL such as http://localhost:4318", name))
		}
	}
	return o
}

// firstSet returns the name of the first variable if it is set, otherwise of the second.
func firstSet(set map[string]string, first, second string) string {
	if set[first] != "" {
		return first
	}
	return second
}
