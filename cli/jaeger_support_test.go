//go:build jaeger

package cli_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// jaeger is a real Jaeger, asked over its own query API.
type jaeger struct {
	t          *testing.T
	otlp, http string
}

// startJaeger starts bin/jaeger, which "make test-jaeger" has built, with all in memory.
func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	program, err := filepath.Abs("../bin/jaeger")
	if err == nil {
		_, err = os.Stat(program)
	}
	assert.Require(t, err == nil, "no Jaeger: start this test with make test-jaeger, which builds it: %v", err)
	ports := freePorts(t, 4)
	c := exec.Command(program, "--config", "../tools/jaeger/config.yaml")
	c.Env = append(os.Environ(), "JAEGER_QUERY_PORT="+ports[0], "JAEGER_QUERY_GRPC_PORT="+ports[1],
		"JAEGER_OTLP_GRPC_PORT="+ports[2], "JAEGER_OTLP_HTTP_PORT="+ports[3])
	log := &screen{}
	c.Stdout, c.Stderr = log, log
	assert.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	j := &jaeger{t: t, http: "http://127.0.0.1:" + ports[0], otlp: "http://127.0.0.1:" + ports[3]}
	eventually(t, "Jaeger answers", log, func() bool {
		_, err := get(j.http + "/api/services")
		return err == nil
	})
	return j
}

// jaegerTrace is a trace as Jaeger's query API returns it.
type jaegerTrace struct {
	TraceID string       `json:"traceID"`
	Spans   []jaegerSpan `json:"spans"`
	raw     string
}

type jaegerSpan struct {
	TraceID    string `json:"traceID"`
	SpanID     string `json:"spanID"`
	Name       string `json:"operationName"`
	StartTime  int64  `json:"startTime"`
	Duration   int64  `json:"duration"`
	References []struct {
		Type    string `json:"refType"`
		TraceID string `json:"traceID"`
		SpanID  string `json:"spanID"`
	} `json:"references"`
	Tags []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"tags"`
}

// tag is the value of an attribute as text, "" if there is none.
func (s jaegerSpan) tag(key string) string {
	for _, tag := range s.Tags {
		if number, ok := tag.Value.(float64); ok && tag.Key == key {
			return strconv.FormatFloat(number, 'f', -1, 64)
		}
		if tag.Key == key {
			return fmt.Sprint(tag.Value)
		}
	}
	return ""
}

// parent is the id of the span's parent, "" for a root.
func (s jaegerSpan) parent() string {
	for _, r := range s.References {
		if r.Type == "CHILD_OF" {
			return r.SpanID
		}
	}
	return ""
}

// links are the trace and span ids that the span is linked to.
func (s jaegerSpan) links() (out []string) {
	for _, r := range s.References {
		if r.Type == "FOLLOWS_FROM" {
			out = append(out, r.TraceID+"/"+r.SpanID)
		}
	}
	return out
}

func (s jaegerSpan) id() string { return s.TraceID + "/" + s.SpanID }

// named are the spans of a trace with a name.
func (tr jaegerTrace) named(name string) []jaegerSpan {
	return slices.DeleteFunc(slices.Clone(tr.Spans), func(s jaegerSpan) bool { return s.Name != name })
}

// only is the one span of a name.
func (tr jaegerTrace) only(t *testing.T, name string) jaegerSpan {
	t.Helper()
	found := tr.named(name)
	assert.Require(t, len(found) == 1, "%d spans %s in\n%s", len(found), name, tr)
	return found[0]
}

// String draws the tree.
func (tr jaegerTrace) String() string {
	var out strings.Builder
	spans := slices.Clone(tr.Spans)
	slices.SortFunc(spans, func(a, b jaegerSpan) int { return int(a.StartTime - b.StartTime) })
	known := map[string]bool{}
	for _, s := range spans {
		known[s.SpanID] = true
	}
	var draw func(parent string, depth int)
	draw = func(parent string, depth int) {
		for _, s := range spans {
			if depth == 0 && known[s.parent()] || depth > 0 && s.parent() != parent {
				continue
			}
			fmt.Fprintf(&out, "%s%s (%.1f ms)", strings.Repeat("  ", depth), s.Name, float64(s.Duration)/1000)
			for _, tag := range s.Tags {
				if strings.HasPrefix(tag.Key, "maintenance.") || strings.HasPrefix(tag.Key, "error") {
					fmt.Fprintf(&out, " %s=%v", strings.TrimPrefix(tag.Key, "maintenance."), tag.Value)
				}
			}
			for _, l := range s.links() {
				fmt.Fprintf(&out, " -> %s", l)
			}
			out.WriteString("\n")
			draw(s.SpanID, depth+1)
		}
	}
	draw("", 0)
	return out.String()
}

func (j *jaeger) traces(path string) (out []jaegerTrace) {
	j.t.Helper()
	body, err := get(j.http + path)
	if err != nil {
		return nil
	}
	var answer struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		j.t.Fatalf("%v in %s", err, body)
	}
	for _, raw := range answer.Data {
		tr := jaegerTrace{raw: string(raw)}
		if err := json.Unmarshal(raw, &tr); err != nil {
			j.t.Fatalf("%v in %s", err, raw)
		}
		out = append(out, tr)
	}
	return out
}

// trace waits for a trace in which a span of each name has arrived, which is its last.
func (j *jaeger) trace(id string, names ...string) (found jaegerTrace) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("trace %s with %s", id, names), &screen{}, func() bool {
		for _, found = range j.traces("/api/traces/" + id) {
			if !slices.ContainsFunc(names, func(name string) bool { return len(found.named(name)) == 0 }) {
				return true
			}
		}
		return false
	})
	return found
}

// search finds the traces with a span of an operation that has these attributes.
func (j *jaeger) search(operation string, tags map[string]string) []jaegerTrace {
	j.t.Helper()
	encoded := assert.Must(json.Marshal(tags))(j.t)
	now := time.Now()
	query := url.Values{
		"service": {"caretaker"}, "limit": {"1500"}, "tags": {string(encoded)},
		"start": {fmt.Sprint(now.Add(-time.Hour).UnixMicro())}, "end": {fmt.Sprint(now.Add(time.Minute).UnixMicro())},
	}
	if operation != "" {
		query.Set("operation", operation)
	}
	return j.traces("/api/traces?" + query.Encode())
}
