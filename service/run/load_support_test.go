package run_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// standby is a standby of that cluster, with a connection to it.
func standby(t *testing.T) *pgx.Conn {
	t.Helper()
	s := servicetest.Must(servicetest.Loaded.Cluster(t).Standby(context.Background(), nil))(t)
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	conn := servicetest.Must(pgx.Connect(context.Background(), s.URL("postgres")))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// spared waits until it does not.
func spared(t *testing.T, s *service.Service) {
	t.Helper()
	devdb.Eventually(t, "the load to be below its limits", func() bool { return servicetest.Status(t, s).Condition == service.ConditionIdle })
}

// wantEverything fails the test unless the run did everything.
func wantEverything(t *testing.T, r service.Run) {
	t.Helper()
	servicetest.WantState(t, r, repo.RunSucceeded)
	if r.OverLimit || r.Reason != "" {
		t.Errorf("over_limit %t, reason %q", r.OverLimit, r.Reason)
	}
}

const short = 2 * time.Second
