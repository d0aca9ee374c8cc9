package service_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantDeferred fails the test unless these are all that the worker defers, by number and by list.
func wantDeferred(t *testing.T, s *service.Service, worker string, due int64, want ...string) {
	t.Helper()
	st := servicetest.Must(s.Status(t.Context(), worker))(t)
	b := st[0].Backlog
	if b.Due != due || b.Deferred != int64(len(want)) || b.Pending != due+b.Deferred || b.Dead != 0 {
		t.Errorf("%s: backlog %+v, want %d due and %d deferred", worker, b, due, len(want))
	}
	list, err := s.Waiting(t.Context(), worker, false)
	var got []string
	for _, w := range list.Items {
		got = append(got, fmt.Sprintf("%d %s", w.ID, w.Reason))
	}
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: deferred are %q, want %q; %v", worker, got, want, err)
	}
}

const byAnn = " is protected by ann: evidence"

func TestProtect_PlaceholdersAreDeferredAndSayByWhom(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 0, `NULL`)
	e.Detail(2, 0, `NULL`)
	e.Detail(3, 3, `now() - interval '1 day'`)
	e.Detail(4, 1, `now() - interval '1 day'`)
	e.Detail(5, 2, `now() - interval '9 days'`)
	s := e.Service("", e.WithQueue)
	for _, id := range []int64{2, 3, 5, 77} {
		protect(t, s, "user", id)
	}
	wantDeferred(t, s, servicetest.PlaceholderUsers, 1, "2 PROTECTED: user 2"+byAnn, "3 PROTECTED: user 3"+byAnn,
		"4 1 attempt", "5 PROTECTED: user 5"+byAnn)
}

func TestProtect_UsersInTheQueueAreDeferredAndSayByWhom(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(27)
	s := g.Service()
	protect(t, s, "user", 27)
	g.Run(s, "deferred_users=1")
	wantDeferred(t, s, servicetest.GhostUsers, 0, "27 PROTECTED: user 27"+byAnn)
}

func TestProtect_GroupsAreDeferredAndSayByWhom(t *testing.T) {
	t.Parallel()
	g := family(t)
	g.Owned(40, 15)
	g.Owned(50, 3)
	protect(t, g.Service, "group", 12)
	wantDeferred(t, g.Service, servicetest.AdjournedGroups, 1, "10 PROTECTED: group 12"+byAnn, "50 in its grace period")
	g.Run("held_groups=1 scheduled_jobs=1")
	// A cancellation holds also what has begun.
	servicetest.Must(g.Service.CancelJob(t.Context(), 1, "stop", "ann"))(t)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id) VALUES (40)`)
	wantDeferred(t, g.Service, servicetest.AdjournedGroups, 0, "10 PROTECTED: group 12"+byAnn,
		"40 CANCELLED: job 1 was cancelled by ann: stop; caretaker jobs retry 1 takes that back", "50 in its grace period")
}
