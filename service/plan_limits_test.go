package service_test

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestPlanDeletion_WaitsAFewSecondsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service.NewTurns()
		first, _ := s.PlanTurn(t.Context())
		_, _ = s.PlanTurn(t.Context())
		began := time.Now()
		_, err := s.PlanTurn(t.Context())
		if busy, ok := errors.AsType[*service.PlansBusyError](err); !ok || time.Since(began) != busy.RetryAfter() ||
			busy.Error() != "2 plans are being made, as many as may be at once: try again in 3s" {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, first) //nolint:gocritic // elapses: by the clock of the bubble
		if _, err := s.PlanTurn(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// namesOfUsers is in the last statement of every plan of a user.
const namesOfUsers = "SELECT x.username AS name FROM users x"

func TestFault_Replica_PlansAreReadThereOrWhereItIsLateOrDownOnThePrimary(t *testing.T) {
	t.Parallel()
	m := servicetest.NewMirrored(t)
	m.Candidates()
	s := m.Service()
	plan := func() *service.Plan {
		t.Helper()
		return servicetest.Must(s.PlanDeletion(t.Context(), "user", 501))(t)
	}
	same := func(what string, got, want *service.Plan) {
		t.Helper()
		check(t, reflect.DeepEqual(got.Tables, want.Tables) && got.Digest == want.Digest && got.Name == want.Name,
			"%s: %+v, want %+v", what, got, want)
	}
	// What other tests write may leave the standby behind for a moment.
	readThere := func() (p *service.Plan) {
		t.Helper()
		before := m.Asked(namesOfUsers)
		devdb.Eventually(t, "a plan read on the standby", func() bool {
			m.CaughtUp()
			p = plan()
			return m.Asked(namesOfUsers) == before+1
		})
		return p
	}
	first := readThere()
	asked := m.Asked(namesOfUsers)

	// Late: what was just written is in the plan, so it is the primary's.
	m.Pause()
	m.Exec("main", `INSERT INTO emails (user_id, email, created_at, updated_at) VALUES (501, 'another@x', now(), now())`)
	late := plan()
	m.WantRead(namesOfUsers, asked)
	check(t, late.Digest != first.Digest, "a row more, and the plan is the same: %+v", late)
	m.Replay()
	same("the replica has caught up", readThere(), late)
	asked = m.Asked(namesOfUsers)

	// It answers, but cannot be read: the primary is asked for the whole plan.
	servicetest.Must(m.Mirror.Exec(t.Context(), `ALTER SYSTEM SET search_path = 'nowhere'`))(t)
	m.OnMirror(`SELECT pg_reload_conf()`)
	same("the replica refuses", plan(), late)
	m.WantRead(namesOfUsers, asked)

	servicetest.NoError(t, m.Standby.Kill())
	same("the replica is down", plan(), late)
}
