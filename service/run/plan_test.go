package run

import (
	"errors"
	"testing"
	"time"
)

func TestPlan_ThatTakesTooLongHasCountedAtLeastWhatItHas(t *testing.T) {
	t.Parallel()
	p := &Plan{Exact: true, ends: time.Now().Add(-time.Second), tables: map[string]*PlannedTable{"issues": {Table: "issues", Deleted: 7}}}
	err := p.CheckStop()
	if !errors.Is(err, ErrPlanTime) {
		t.Fatal(err)
	}
	if err := p.Absorb(t.Context(), err); err != nil || p.Exact || !p.tables["issues"].AtLeast || p.tables["issues"].Deleted != 7 {
		t.Errorf("%v, %+v", err, p)
	}
}
