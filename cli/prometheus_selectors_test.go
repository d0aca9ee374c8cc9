//go:build prometheus

package cli_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// metricSelectors are the selectors of metrics in an expression, with their matchers, and the labels that it groups by.
// It knows as much of the language as our expressions use.
func metricSelectors(expr string) (selectors, labels []string) {
	grouping := regexp.MustCompile(`\b(by|on|group_left)\s*\(([^)]*)\)`)
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for name := range strings.SplitSeq(m[2], ",") {
			if name = strings.TrimSpace(name); name != "" && name != "le" {
				labels = append(labels, name)
			}
		}
	}
	expr = grouping.ReplaceAllString(expr, " ")
	expr = regexp.MustCompile(`\[[^]]*\]|\boffset \S+|\b[0-9][0-9.a-z]*`).ReplaceAllString(expr, " ")
	words := regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})?(\s*\()?`)
	for _, m := range words.FindAllStringSubmatch(expr, -1) {
		if m[3] == "" && !slices.Contains([]string{"and", "or", "unless"}, m[1]) {
			selectors = append(selectors, m[1]+m[2])
		}
	}
	return selectors, labels
}

func TestPrometheusSelectors_AreFoundInExpressions(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string][2]string{
		`sum by (le, a) (rate(x_bucket{b=~"c|d",e!="f"}[5m])) > 0.25`:               {`x_bucket{b=~"c|d",e!="f"}`, "a"},
		`a:b:max{w="x"} >= a:b:max offset 2h and min_over_time(a:b:max[2h]) > 1e3`:  {`a:b:max{w="x"} a:b:max a:b:max`, ""},
		`x > on (a, b) group_left () (max by (a, b) (y) + 60) or absent(up{j="c"})`: {`x y up{j="c"}`, "a b a b"},
	} {
		selectors, labels := metricSelectors(expr)
		assert.Equal(t, [2]string{strings.Join(selectors, " "), strings.Join(labels, " ")}, want, expr)
	}
}

// panel is a panel of the dashboard.
type panel struct {
	Title, Description string
	Targets            []struct{ Expr string }
}

// expressions are those of the panels by title, with the variables of Grafana filled in.
func dashboardPanels(t *testing.T) (all []panel) {
	t.Helper()
	var dashboard struct{ Panels []panel }
	filled := strings.NewReplacer("$__rate_interval", "30s", "$__range", "10m", "$worker", ".*", "$database", ".*").
		Replace(fileContent(t, "../deploy/grafana/caretaker.json"))
	assert.NoError(t, json.Unmarshal([]byte(filled), &dashboard))
	return dashboard.Panels
}

// wantNames fails the test unless all metrics, values of labels and labels of an expression are there.
func (p *prometheus) wantNames(where, expr string, more ...string) {
	p.t.Helper()
	selectors, labels := metricSelectors(expr)
	known := map[string]bool{}
	for _, s := range selectors {
		found := p.series(s)
		if len(found) == 0 {
			p.t.Errorf("%s: there is no %s", where, s)
		}
		for _, series := range found {
			for label := range series {
				known[label] = true
			}
		}
	}
	for _, label := range append(labels, more...) {
		if !known[label] {
			p.t.Errorf("%s: nothing in it has a label %s", where, label)
		}
	}
}

// wantRules fails the test unless all rules are loaded and healthy, and all that they name is there.
func (p *prometheus) wantRules(t *testing.T) {
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	assert.NoError(t, p.ask("rules", nil, &answer))
	health := map[string]string{}
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			health[r.Name] = r.Health + r.LastError
		}
	}
	used := regexp.MustCompile(`\$labels\.([a-z_]+)`)
	for _, r := range deployedRules(t) {
		name := r.Alert + r.Record
		assert.Equal(t, health[name], "ok", name)
		var labels []string
		for _, m := range used.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			labels = append(labels, m[1])
		}
		p.wantNames(name, r.Expr, labels...)
	}
}

// wantPanels fails the test unless every expression of the dashboard can be evaluated, and gives something or says in the
// panel's description when it is empty.
func (p *prometheus) wantPanels(t *testing.T) {
	expressions, empty := 0, 0
	for _, panel := range dashboardPanels(t) {
		for _, target := range panel.Targets {
			expressions++
			found, err := p.query(target.Expr)
			assert.That(t, err == nil, "%s: %v", panel.Title, err)
			p.wantNames("panel "+panel.Title, target.Expr)
			if len(found) > 0 {
				continue
			}
			empty++
			assert.Contains(t, panel.Description, "Empty when ")
		}
	}
	if t.Logf("%d expressions, %d without data", expressions, empty); expressions < 50 {
		t.Errorf("only %d expressions", expressions)
	}
}
