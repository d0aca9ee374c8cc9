package status

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestSummarize_ADatabaseThatIsDownIsNamedOnce(t *testing.T) {
	t.Parallel()
	down := &Problem{Class: FailureUnreachable, Database: "ci", Message: "database ci: unreachable"}
	workers := []Worker{
		{Worker: "a", Condition: ConditionFailing, Failing: down},
		{Worker: "b", Condition: ConditionFailing, Failing: down},
		{Worker: "c", Condition: ConditionFailing, Failing: &Problem{Class: FailureLock, Database: "ci"}},
	}
	if v := Summarize(workers, nil, nil); v.Short != "ci unreachable" || v.Long != "database ci: unreachable. Failing: a, b." {
		t.Errorf("%+v", v)
	}
	if v := Summarize(workers[1:], nil, nil); v.Short != "2 failing" {
		t.Errorf("%+v", v)
	}
	dead := append(workers[2:], Worker{Worker: "d", Condition: ConditionIdle, Backlog: Backlog{Dead: 3}})
	if v := Summarize(dead, nil, nil); v.Short != "1 failing, 3 need attention" || v.Tone != "bad" {
		t.Errorf("%+v", v)
	}
	idle := []Worker{{Condition: ConditionIdle, Backlog: Backlog{Untracked: 2}}}
	v := Summarize(idle, nil, nil)
	assert.Equal(t, v, Summary{"healthy, 2 not tracked", "All workers are healthy. 2 parents not tracked, so deletions are not recorded.", "warn"})
}
