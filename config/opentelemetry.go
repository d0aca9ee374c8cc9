package config

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// OpenTelemetry is what the standard variables of OpenTelemetry ask for. The SDK reads the others,
// such as OTEL_EXPORTER_OTLP_PROTOCOL, itself.
type OpenTelemetry struct {
	// Disabled by OTEL_SDK_DISABLED.
	Disabled bool
	// Traces and Metrics are set if an exporter or an OTLP endpoint is. The exporter "prometheus"
	// does not count: it is served on metrics_listen in any case.
	Traces, Metrics bool
	// Propagators is OTEL_PROPAGATORS.
	Propagators string
	// Mistakes are about variables with which nothing can be exported, Warnings about those that are
	// ignored.
	Mistakes, Warnings []string
}

func openTelemetry(environ []string) (o OpenTelemetry) {
	set := variables(environ)
	o.Disabled = strings.EqualFold(set["OTEL_SDK_DISABLED"], "true")
	o.Propagators = set["OTEL_PROPAGATORS"]
	endpoint := set["OTEL_EXPORTER_OTLP_ENDPOINT"]
	o.Traces = set["OTEL_TRACES_EXPORTER"] != "" || endpoint+set["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] != ""
	switch set["OTEL_METRICS_EXPORTER"] {
	case "prometheus":
	case "":
		o.Metrics = endpoint+set["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] != ""
	default:
		o.Metrics = true
	}
	if o.Disabled {
		return o
	}
	for _, signal := range []struct {
		name     string
		exported bool
	}{{"TRACES", o.Traces}, {"METRICS", o.Metrics}} {
		exporter, own := set["OTEL_"+signal.name+"_EXPORTER"], "OTEL_EXPORTER_OTLP_"+signal.name+"_ENDPOINT"
		if signal.exported && (exporter == "" || strings.Contains(exporter, "otlp")) {
			o.Mistakes = append(o.Mistakes, endpointMistakes(set, own)...)
		}
	}
	o.Mistakes = append(slices.Compact(o.Mistakes), exporterMistakes(set)...)
	if o.Traces {
		o.Warnings = samplerWarnings(set)
	}
	return o
}

// exporterMistakes are about exporters that there are not.
func exporterMistakes(set map[string]string) (mistakes []string) {
	for _, variable := range []struct {
		name    string
		allowed []string
	}{
		{"OTEL_TRACES_EXPORTER", []string{"otlp", "console", "none"}},
		{"OTEL_METRICS_EXPORTER", []string{"otlp", "prometheus", "console", "none"}},
	} {
		if exporter := set[variable.name]; exporter != "" && !slices.Contains(variable.allowed, exporter) {
			mistakes = append(mistakes, fmt.Sprintf("%s: %q is none of %s",
				variable.name, exporter, strings.Join(variable.allowed, ", ")))
		}
	}
	return mistakes
}

// endpointMistakes is about the endpoint of a signal: its own, else the common one. Endpoints are
// not repeated, as they may have passwords.
func endpointMistakes(set map[string]string, own string) []string {
	name := own
	if set[own] == "" {
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	if set[name] == "" || sendable(set[name]) {
		return nil
	}
	return []string{name + " is no URL such as http://localhost:4318: begin it with http:// or " +
		"https://, or unset it to send nothing"}
}

// samplerWarnings are about invalid variables of the sampler. By OpenTelemetry's specification they
// are ignored, and do not keep a service from starting.
func samplerWarnings(set map[string]string) (warnings []string) {
	samplers := []string{
		"always_on", "always_off", "traceidratio", "parentbased_always_on",
		"parentbased_always_off", "parentbased_traceidratio",
	}
	sampler, share := strings.ToLower(set["OTEL_TRACES_SAMPLER"]), set["OTEL_TRACES_SAMPLER_ARG"]
	if sampler != "" && !slices.Contains(samplers, sampler) {
		warnings = append(warnings, "OTEL_TRACES_SAMPLER is none of "+
			strings.Join(samplers, ", ")+": all traces are kept")
	}
	ratio, err := strconv.ParseFloat(share, 64)
	if share != "" && strings.HasSuffix(sampler, "traceidratio") && (err != nil || ratio < 0 || ratio > 1) {
		warnings = append(warnings,
			"OTEL_TRACES_SAMPLER_ARG is no number from 0 to 1: all traces are kept")
	}
	return warnings
}

// sendable reports whether the SDK can send to an endpoint: it needs a scheme such as http://.
func sendable(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && (u.Host != "" || u.Scheme == "unix")
}

// variables are those of an environment by name.
func variables(environ []string) map[string]string {
	set := map[string]string{}
	for _, entry := range environ {
		name, content, _ := strings.Cut(entry, "=")
		set[name] = strings.TrimSpace(content)
	}
	return set
}
