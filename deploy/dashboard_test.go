package deploy_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

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
	if want := []string{"datasource", "worker", "database"}; !slices.Equal(variables, want) {
		t.Errorf("variables %v, want %v", variables, want)
	}
	for i, p := range d.Panels {
		for _, before := range d.Panels[:i] {
			if before.ID == p.ID || before.GridPos.overlaps(p.GridPos) {
				t.Errorf("%s and %s have the same id, or overlap", before.Title, p.Title)
			}
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
