//go:build jaeger

package cli_test

import (
	"fmt"
	"slices"
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

const (
	cancelRun    = "maintenance.v1.MaintenanceService/CancelRun"
	pauseWorker  = "maintenance.v1.MaintenanceService/PauseWorker"
	resumeWorker = "maintenance.v1.MaintenanceService/ResumeWorker"
)

// ends causes ends of all sorts, and returns their traces by what they are called in wantEnds.
func (e *tracedEstate) ends() map[string]jaegerTrace {
	e.t.Helper()
	return map[string]jaegerTrace{"paused": e.paused(), "held": e.held(), "cancelled": e.cancelled(), "job failed": e.failedJob()}
}

// refused is the trace of a call for a run that is refused.
func (e *tracedEstate) refused(request *maintenancev1.RunBatchRequest) jaegerTrace {
	e.t.Helper()
	id, run, err := e.ask(request)
	if err == nil {
		e.t.Fatalf("%s was not refused: %v", request.GetWorker(), run)
	}
	return e.trace(id, runBatch)
}

func (e *tracedEstate) paused() jaegerTrace {
	e.t.Helper()
	const worker = "adjourned_group_deletion"
	if _, err := e.client.PauseWorker(e.t.Context(), &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "a secret of an operator"}); err != nil {
		e.t.Fatal(err)
	}
	trace := e.refused(&maintenancev1.RunBatchRequest{Worker: worker})
	assert.Must(e.client.ResumeWorker(e.t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: worker}))(e.t)
	return trace
}

func (e *tracedEstate) held() jaegerTrace {
	e.t.Helper()
	execute(e.t, e.sql, `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour' WHERE name = 'ghost_user_migration'`)
	trace := e.refused(&maintenancev1.RunBatchRequest{Worker: "ghost_user_migration"})
	execute(e.t, e.sql, `UPDATE maintenance.leases SET expires_at = now() WHERE name = 'ghost_user_migration'`)
	return trace
}

func (e *tracedEstate) cancelled() jaegerTrace {
	e.t.Helper()
	execute(e.t, e.sql, `DELETE FROM slow`)
	id, run, err := e.ask(&maintenancev1.RunBatchRequest{Worker: "loose_foreign_keys_cleanup", Database: "main", Async: true})
	if err != nil {
		e.t.Fatal(err)
	}
	eventually(e.t, "the run is at work", e.log, func() bool {
		return e.value(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`) > 0
	})
	assert.Must(e.client.CancelRun(e.t.Context(), &maintenancev1.CancelRunRequest{Id: run.GetId()}))(e.t)
	_, trace := e.finish(id, run)
	return trace
}

// failedJob is the trace of the first attempt of a job delete_user, which is as one that a run has queued.
func (e *tracedEstate) failedJob() jaegerTrace {
	e.t.Helper()
	execute(e.t, e.sql, `CREATE TRIGGER refuse BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	id := e.value(`INSERT INTO maintenance.river_job (kind, args, metadata, max_attempts, priority, queue, state)
		SELECT 'delete_user', jsonb_build_object('user_id', u.id, 'deleted_by_id', NULL, 'skip_authorization', true, 'reason', 'test'),
			j.metadata - 'processed_by' - 'outcome' - 'reason', 25, 1, 'default', 'available'
		FROM (SELECT metadata FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' LIMIT 1) j,
			(SELECT min(u.id) AS id FROM users u WHERE u.user_type = 0 AND NOT EXISTS (SELECT FROM ghost_user_migrations g WHERE g.user_id = u.id)
				AND NOT EXISTS (SELECT FROM members m WHERE m.user_id = u.id AND m.access_level = 50) AND NOT EXISTS (SELECT FROM organization_users o WHERE o.user_id = u.id AND o.access_level = 50)) u RETURNING id`)
	eventually(e.t, "an attempt fails", e.log, func() bool {
		return e.value(fmt.Sprintf(`SELECT count(*) FROM maintenance.river_job WHERE id = %d AND errors IS NOT NULL`, id)) > 0
	})
	execute(e.t, e.sql, `DROP TRIGGER refuse ON users`)
	var found []jaegerTrace
	eventually(e.t, "the trace of the attempt", e.log, func() bool {
		found = e.search("maintenance.job", map[string]string{"messaging.message.id": fmt.Sprint(id), "maintenance.outcome": "failed"})
		return len(found) > 0
	})
	return found[0]
}

// wantEnds fails the test unless each trace tells its end on the span of that name, and no other spans than these have the
// status Error.
func wantEnds(t *testing.T, ends map[string]jaegerTrace) {
	t.Helper()
	for name, c := range map[string]struct {
		span string
		// tells are attributes; "*" is any value.
		tells  map[string]string
		errors []string
	}{
		"paused": {runBatch, map[string]string{"maintenance.reason": "WORKER_PAUSED", "maintenance.worker": "adjourned_group_deletion"}, nil},
		"held": {"maintenance.lease.acquire", map[string]string{
			"maintenance.outcome": "held", "maintenance.holder": "somebody", "maintenance.lease": "ghost_user_migration", "maintenance.lease_epoch": "*",
		}, nil},
		"cancelled": {"maintenance.run", map[string]string{
			"maintenance.outcome": "cancelled", "maintenance.reason": "CANCELLED", "maintenance.stopped_because": "stopped by request: CANCELLED",
			"maintenance.batches_failed": "0",
		}, nil},
		"job failed": {"maintenance.job", map[string]string{
			"maintenance.outcome": "failed", "maintenance.user_id": "*", "error.type": "P0001", "db.response.status_code": "P0001", "maintenance.run_id": "*",
		}, []string{"delete user", "maintenance.job"}},
	} {
		t.Run("an end: "+name, func(t *testing.T) {
			span := ends[name].only(t, c.span)
			for key, want := range c.tells {
				if got := span.tag(key); got == "" || want != "*" && got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
			var errors []string
			for _, s := range ends[name].Spans {
				if s.tag("error") == "true" {
					errors = append(errors, s.Name)
				}
			}
			slices.Sort(errors)
			if !slices.Equal(errors, c.errors) {
				t.Errorf("in error %v, want %v, in\n%s", errors, c.errors, ends[name])
			}
			stopped := slices.ContainsFunc(ends[name].named("maintenance.batch"), func(s jaegerSpan) bool { return s.tag("maintenance.outcome") == "stopped" })
			if name == "cancelled" && !stopped {
				t.Errorf("no batch was stopped in\n%s", ends[name])
			}
		})
	}
}
