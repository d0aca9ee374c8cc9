package cli_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scrape reads the metrics of a server.
func (r *running) scrape(t *testing.T) string {
	t.Helper()
	answer, err := http.Get("http://" + r.log.field(t, "serving", "metrics_listen") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// scraped are the metrics of a server: the labels of each by its name, without those of buckets.
func scraped(t *testing.T, r *running) map[string][]string {
	t.Helper()
	content := r.scrape(t)
	histograms := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) histogram$`).FindAllStringSubmatch(content, -1) {
		histograms[m[1]] = true
	}
	found := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`).FindAllStringSubmatch(content, -1) {
		name, labels := m[1], []string{}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && histograms[base] {
				name = base
			}
		}
		for _, l := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		found[name] = labels
	}
	return found
}

// documented are the metrics of docs/metrics.md: their labels by their names; and the prefixes of those of libraries.
func documented(t *testing.T) (metrics map[string][]string, prefixes []string) {
	t.Helper()
	content, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics = map[string][]string{}
	quoted := regexp.MustCompile("`([a-z_]+)`")
	for line := range strings.Lines(string(content)) {
		cells := strings.Split(line, " | ")
		switch {
		case len(cells) == 4 && strings.HasPrefix(line, "| `maintenance_"):
			labels := []string{}
			for _, l := range quoted.FindAllStringSubmatch(cells[2], -1) {
				labels = append(labels, l[1])
			}
			slices.Sort(labels)
			metrics[quoted.FindStringSubmatch(cells[0])[1]] = labels
		case len(cells) == 2:
			for _, p := range quoted.FindAllStringSubmatch(cells[0], -1) {
				prefixes = append(prefixes, p[1])
			}
		}
	}
	return metrics, prefixes
}

func TestMetrics_AreAllDocumentedWithTheirLabels(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	sh.defined(oneKey)
	r := sh.serving()
	r.want(0, "run "+worker)
	found := scraped(t, r)
	listed, prefixes := documented(t)
	for name, labels := range found {
		if !strings.HasPrefix(name, "maintenance_") {
			if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
				t.Errorf("%s has no prefix that docs/metrics.md names", name)
			}
			continue
		}
		want, ok := listed[name]
		if !ok || !slices.Equal(labels, want) {
			t.Errorf("%s has the labels %q, docs/metrics.md says %q (%t)", name, labels, want, ok)
		}
	}
	for name := range listed {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is in docs/metrics.md, but the server has no such metric", name)
		}
	}
	if len(found) < 40 {
		t.Errorf("only %d metrics found", len(found))
	}
}
