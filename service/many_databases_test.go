package service_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestManyDatabases_ARoundWorksADozenAndOneThatIsAwayKeepsNoOtherFromIt(t *testing.T) {
	m := servicetest.NewMeter(t)
	var shards []string
	for i := range 11 {
		shards = append(shards, fmt.Sprintf("shard_%02d", i+1))
	}
	c, s := newRounds(t, shards...)
	c.dueIn("main")
	c.dueIn(shards...)
	const away = "shard_07"
	c.Open[7].Close()
	want := []string{"main succeeded"}
	for _, shard := range shards {
		state := " succeeded"
		if shard == away {
			state = " failed"
		}
		want = append(want, shard+state)
	}
	c.fire(s, "11-20 12:01:00", want...)
	for _, shard := range shards {
		if shard != away {
			c.WantQueue(shard, "")
			c.Want(shard, `SELECT string_agg(name || ' ' || epoch, '') FROM maintenance.leases`, servicetest.LooseForeignKeys+"/"+shard+" 1")
		}
	}
	c.WantQueue(away, "1")

	st := servicetest.WantCondition(t, s, service.ConditionFailing, "database "+away+": unreachable")
	if n := len(st.Databases); n != 12 || st.Databases[0].Name != away || st.Databases[1].Name != "main" || st.Databases[11].Name != "shard_11" ||
		!strings.Contains(st.Databases[0].Problem, "unreachable") || st.Databases[0].Known || st.Databases[1].Problem != "" {
		t.Errorf("%d databases: %+v", n, st.Databases)
	}
	equal(t, "leases", len(st.Leases), 11)
	for _, series := range []string{"backlog.pending", "lease.held", "backlog.partitions"} {
		n := len(m.Values("maintenance."+series, "worker="+servicetest.LooseForeignKeys))
		check(t, n <= 12, "%s has %d series", series, n)
	}
	reachable := m.Values("maintenance.database.reachable", "")
	slices.Sort(reachable)
	check(t, len(reachable) == 12 && reachable[0] == 0 && reachable[1] == 1, "reachable are %v", reachable)
}

func TestManyDatabases_StatusTellsTheFirstProblemsAndHowManyMoreThereAre(t *testing.T) {
	t.Parallel()
	names := []string{"main", "a", "b", "c", "d", "e", "f", "g"}
	e := servicetest.New(t, servicetest.Small, names...)
	s := e.Service(servicetest.OneChild)
	for _, d := range e.Open[1:] {
		d.Close()
	}
	st := servicetest.WantCondition(t, s, service.ConditionFailing, "database e: unreachable", "; 2 more problems", "; 2 more databases with remarks")
	check(t, !strings.Contains(st.ConditionDetail, "database f: unreachable"), "detail %q", st.ConditionDetail)
	check(t, st.Databases[0].Name == "a" && st.Databases[7].Name == "main", "%+v", st.Databases)
}

func TestManyDatabases_GitLabsOwnWorkersLookIntoNoneThatIsNotGitLabs(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main", "ci", "shop")
	s := e.Service(servicetest.OneChild, e.WithQueue)
	e.Open[2].Close()
	for _, worker := range []string{"ghost_user_migration", "placeholder_user_cleanup"} {
		r := servicetest.Must(s.RunBatch(t.Context(), service.RunRequest{Worker: worker}))(t)
		check(t, r.State == "succeeded", "%s: %+v", worker, r)
		st := servicetest.StatusOf(t, s, worker)
		check(t, st.Condition != service.ConditionFailing && len(st.Databases) == 0, "%s: %+v", worker, st)
	}
	e.Want("ci", `SELECT count(*) FROM maintenance.leases WHERE name = 'ghost_user_migration'`, "1")
	e.Open[1].Close()
	r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: "ghost_user_migration"})
	check(t, err != nil || r.State != "succeeded", "ci is away, and nobody has noticed")
}
