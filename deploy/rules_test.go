// Package deploy_test keeps the rules for Prometheus, their tests and the runbook together.
package deploy_test

import (
	"encoding/json"
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
	return string(assert.Must(os.ReadFile(file))(t))
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
	_, runbook, _ := strings.Cut(read(t, "../docs/operate/runbook.md"), "\n## Alerts\n")
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
		anchor := "https://github.com/caretaker-go/caretaker/blob/main/docs/operate/runbook.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != anchor {
			t.Errorf("%s: runbook_url %q, want %s", r.Alert, r.Annotations["runbook_url"], anchor)
		}
		text := runbook[r.Alert]
		delete(runbook, r.Alert)
		assert.That(t, strings.HasPrefix(strings.TrimSpace(text), "*"+severity+".*"),
			"docs/operate/runbook.md has no paragraph ### %s that begins with *%s.*", r.Alert, severity)
		for _, part := range []string{"Look:", "Do:"} {
			assert.That(t, strings.Contains(text, part), "the paragraph of %s has no %s", r.Alert, part)
		}
	}
	for name := range runbook {
		t.Errorf("docs/operate/runbook.md has a paragraph %s, but there is no such alert", name)
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

// expects reports whether the test asks for the rule, and expects something of it or nothing.
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
	runbook := read(t, "../docs/operate/runbook.md")
	for _, m := range regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`).FindAllStringSubmatch(runbook, -1) {
		found := false
		for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(runbook, -1) {
			found = found || strings.ReplaceAll(strings.ToLower(h[1]), " ", "-") == m[1]
		}
		if !found {
			t.Errorf("docs/operate/runbook.md has no heading #%s", m[1])
		}
	}
}

// Where loose foreign keys alone are used, no rule speaks of anything else. The others are those
// for all.
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
		general := !others.MatchString(text(r))
		assert.That(t, there == (general || narrow), "%s: is there: %v", r.Alert, there)
		if found := others.FindString(text(own)); found != "" || there && !narrow && text(own) != text(r) {
			t.Errorf("%s: speaks of %q, or is another one", r.Alert, found)
		}
		delete(shown, r.Alert)
	}
	for name := range shown {
		t.Errorf("%s is no alert of all", name)
	}
}

type position struct{ X, Y, W, H int }

func (p position) overlaps(o position) bool {
	return p.X < o.X+o.W && o.X < p.X+p.W && p.Y < o.Y+o.H && o.Y < p.Y+p.H
}

type dashboardPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  position
	Targets                  []struct{ Expr, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

type dashboard struct {
	Title, UID string
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []dashboardPanel
}

func TestDashboard_SaysWhatEachPanelIsAndInWhatUnit(t *testing.T) {
	t.Parallel()
	var d dashboard
	assert.NoError(t, json.Unmarshal([]byte(read(t, "grafana/caretaker.json")), &d))
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	want := []string{"datasource", "worker", "database"}
	assert.That(t, slices.Equal(variables, want), "variables %v, want %v", variables, want)
	for i, p := range d.Panels {
		for _, before := range d.Panels[:i] {
			assert.That(t, before.ID != p.ID && !before.GridPos.overlaps(p.GridPos),
				"%s and %s have the same id, or overlap", before.Title, p.Title)
		}
		assert.That(t, p.GridPos.X+p.GridPos.W <= 24, "%s is wider than the page", p.Title)
		if p.Type != "row" {
			p.wantWords(t)
		}
	}
}

// wantWords fails the test unless the panel has all that makes it readable, and asks the chosen data source.
func (p dashboardPanel) wantWords(t *testing.T) {
	t.Helper()
	if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
		t.Errorf("%q has no title, description, unit, datasource or query", p.Title)
	}
	for _, target := range p.Targets {
		assert.That(t, target.LegendFormat != "", "%s: no legend for %s", p.Title, target.Expr)
		if strings.Contains(target.Expr, "worker, database)") && !strings.Contains(target.Expr, "$database") {
			t.Errorf("%s: the variables are of no use to %s", p.Title, target.Expr)
		}
	}
}
