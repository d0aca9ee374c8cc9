package authenticationevent_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/gitlab/authenticationevent"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	servicetest.Contract(t, servicetest.Fixture{
		Worker: authenticationevent.Name,
		Schema: "main",
		Due: func(e *servicetest.Estate, n int) {
			e.Exec("main", `INSERT INTO authentication_events (result, user_name, created_at)
				SELECT 1, 'u', now() - interval '366 days' FROM generate_series(1, $1::int)`, n)
		},
		Done:     servicetest.Change{Event: "DELETE", Table: "authentication_events", Thing: `r ->> 'id'`},
		Settings: map[string]string{"batch_size": "1"},
		Limit:    map[string]string{"max_deletes": "3"},
	})
}

// An event is due one day after keep_days.
func TestEvents_KeepsYoungOnes(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `INSERT INTO authentication_events (result, user_name, created_at)
		SELECT 1, 'u', now() - i * interval '1 day' FROM generate_series(400, 1, -1) i`)
	s := e.Service("", servicetest.With(func(c *authenticationevent.Config) { c.KeepDays = 30 }))
	r, err := s.RunBatch(t.Context(), run.Request{Worker: authenticationevent.Name})
	if err != nil {
		t.Fatal(err)
	}
	servicetest.WantCounts(t, r, "deleted_rows=371")
	e.Want("main", `SELECT count(*) FROM authentication_events`, "29")
}
