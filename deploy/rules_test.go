// Package deploy_test keeps the rules for Prometheus, their tests and the runbook together.
package deploy_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/assert"
)

type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func (r rule) name() string { return r.Record + r.Alert }

func read(t *testing.T, file string) string {
	t.Helper()
	content := assert.Must(os.ReadFile(file))(t)
	return string(content)
}

func parse(t *testing.T, file string, into any) {
	t.Helper()
	assert.NoError(t, yaml.Unmarshal([]byte(read(t, file)), into))
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, file := range []string{"prometheus/rules.yml", "prometheus/alerts.yml"} {
		var content struct {
			Groups []struct{ Rules []rule }
		}
		parse(t, file, &content)
		for _, g := range content.Groups {
			all = append(all, g.Rules...)
		}
	}
	assert.Require(t, len(all) >= 40, "only %d rules", len(all))
	return all
}

// paragraphs are those of the runbook, by the names of their alerts.
func paragraphs(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	_, runbook, _ := strings.Cut(read(t, "../docs/operations.md"), "\n## Alerts\n")
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	for section := range strings.SplitSeq(runbook, "\n### ") {
		name, text, _ := strings.Cut(section, "\n")
		if strings.HasPrefix(name, "Caretaker") {
			found[name] = text
		}
	}
	return found
}

func TestAlerts_HaveSeverityWordsAndAParagraphOfTheRunbook(t *testing.T) {
	t.Parallel()
	runbook := paragraphs(t)
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		severity := r.Labels["severity"]
		assert.That(t, slices.Contains([]string{"critical", "warning", "info"}, severity), "%s: severity %q", r.Alert, severity)
		for _, word := range []string{"summary", "description"} {
			assert.That(t, r.Annotations[word] != "", "%s has no %s", r.Alert, word)
		}
		anchor := "https://github.com/caretaker-go/caretaker/blob/main/docs/operations.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != anchor {
			t.Errorf("%s: runbook_url %q, want %s", r.Alert, r.Annotations["runbook_url"], anchor)
		}
		text := runbook[r.Alert]
		delete(runbook, r.Alert)
		if !strings.HasPrefix(strings.TrimSpace(text), "*"+severity+".*") {
			t.Errorf("docs/operations.md has no paragraph ### %s that begins with *%s.*", r.Alert, severity)
		}
		for _, part := range []string{"Look:", "Do:"} {
			assert.That(t, strings.Contains(text, part), "the paragraph of %s has no %s", r.Alert, part)
		}
	}
	for name := range runbook {
		t.Errorf("docs/operations.md has a paragraph %s, but there is no such alert", name)
	}
}

// ruleTest is a test for promtool: what it expects is a list that is empty where the rule must not fire.
type ruleTest struct {
	Name   string
	Alerts []struct {
		Alertname string
		Expected  []any `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Queries []struct {
		Expr     string
		Expected []any `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

// expects says whether the test asks for the rule, and expects something of it or nothing.
func (rt ruleTest) expects(r rule) (something, nothing bool) {
	for _, a := range rt.Alerts {
		if a.Alertname == r.Alert {
			something = something || len(a.Expected) > 0
		}
	}
	asked := `alertname="` + r.Alert + `"`
	if r.Record != "" {
		asked = r.Record
	}
	for _, q := range rt.Queries {
		if strings.Contains(q.Expr, asked) {
			something, nothing = something || len(q.Expected) > 0, nothing || len(q.Expected) == 0
		}
	}
	return something, nothing
}

func TestRules_HaveATestInWhichTheyFireAndOneInWhichTheyDoNot(t *testing.T) {
	t.Parallel()
	var tests []ruleTest
	for _, file := range []string{"prometheus/alerts_test.yml", "prometheus/alerts_of_days_test.yml"} {
		var content struct{ Tests []ruleTest }
		parse(t, file, &content)
		tests = append(tests, content.Tests...)
	}
	for _, r := range rules(t) {
		fires, quiet := false, false
		for _, rt := range tests {
			if !strings.HasPrefix(rt.Name, r.name()+" ") {
				continue
			}
			something, nothing := rt.expects(r)
			fires, quiet = fires || something, quiet || nothing
		}
		if !fires || !quiet {
			t.Errorf("%s: a test in which it fires or has a value: %t, one in which it does not: %t", r.name(), fires, quiet)
		}
	}
}

func TestDocuments_LeadToAnchorsThatAreThere(t *testing.T) {
	t.Parallel()
	runbook := read(t, "../docs/operations.md")
	for _, m := range regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`).FindAllStringSubmatch(runbook, -1) {
		found := false
		for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(runbook, -1) {
			found = found || strings.ReplaceAll(strings.ToLower(h[1]), " ", "-") == m[1]
		}
		if !found {
			t.Errorf("docs/operations.md has no heading #%s", m[1])
		}
	}
}

// Where loose foreign keys alone are used, no rule speaks of anything else; the others are those for all.
func TestAlerts_ForLooseForeignKeysAloneAreThoseThatTheyCanHave(t *testing.T) {
	t.Parallel()
	var some struct{ Groups []struct{ Rules []rule } }
	parse(t, "prometheus/alerts-loose-foreign-keys.yml", &some)
	shown := map[string]rule{}
	for _, g := range some.Groups {
		for _, r := range g.Rules {
			shown[r.Alert] = r
		}
	}
	others := regexp.MustCompile(`ghost_|placeholder|adjourned|inactive_token|\busers\b|\bjobs\b|_jobs|queue_oldest`)
	narrowed := []string{"CaretakerBacklogOld", "CaretakerBacklogNotDraining", "CaretakerDatabaseLoaded"}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		text := func(r rule) string {
			return strings.Join([]string{r.Expr, r.Annotations["summary"], r.Annotations["description"]}, " ")
		}
		own, there := shown[r.Alert]
		narrow := slices.Contains(narrowed, r.Alert)
		if general := !others.MatchString(text(r)); there != (general || narrow) {
			t.Errorf("%s: is there: %v", r.Alert, there)
		}
		if found := others.FindString(text(own)); found != "" || there && !narrow && text(own) != text(r) {
			t.Errorf("%s: speaks of %q, or is another one", r.Alert, found)
		}
		delete(shown, r.Alert)
	}
	for name := range shown {
		t.Errorf("%s is no alert of all", name)
	}
}
