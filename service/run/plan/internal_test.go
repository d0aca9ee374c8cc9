package plan

import (
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// A plan's digest does not depend on the order in which its tables and jobs were counted.
func FuzzPlanDigest(f *testing.F) {
	f.Add("issues", int64(3), "notes", int64(4), "delete_user")
	f.Add("a", int64(0), "a", int64(-1), "")
	f.Fuzz(func(t *testing.T, table string, n int64, other string, m int64, job string) {
		digest := func(first, second string, a, b int64) string {
			p := &Plan{Kind: "user", ID: 1, Exact: true, tables: map[string]*Table{}}
			p.tables[first] = &Table{Table: first, Deleted: a}
			if first != second {
				p.tables[second] = &Table{Table: second, Deleted: b}
			}
			p.Jobs = append(p.Jobs, "destroy_group", job)
			assert.NoError(t, p.Finish())
			return p.Digest
		}
		assert.That(t, table == other || digest(table, other, n, m) == digest(other, table, m, n),
			"the order of tables is in the digest")
		if n != 0 && table != other && digest(table, other, n, m) == digest(table, other, n+1, m) {
			t.Error("the number of rows is not in the digest")
		}
	})
}

func TestPlan_ThatTakesTooLongHasCountedAtLeastWhatItHas(t *testing.T) {
	t.Parallel()
	p := &Plan{Exact: true, ends: time.Now().Add(-time.Second), tables: map[string]*Table{"issues": {Table: "issues", Deleted: 7}}}
	err := p.CheckStop()
	assert.Require(t, errors.Is(err, errPlanTime), "%v", err)
	if err := p.AddRefusal(t.Context(), err); err != nil || p.Exact || !p.tables["issues"].AtLeast || p.tables["issues"].Deleted != 7 {
		t.Errorf("%v, %+v", err, p)
	}
}
