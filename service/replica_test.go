package service_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/plan"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestFault_Replica_CandidatesAreReadThereAndDecidedOnThePrimary(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	m.Candidates()
	s := m.Service()
	m.Replayed(servicetest.PlaceholderUsers, servicetest.AdjournedGroups, servicetest.GhostUsers)
	for worker, counts := range map[string]string{
		servicetest.PlaceholderUsers: "scheduled_jobs=3", servicetest.AdjournedGroups: "scheduled_jobs=3", servicetest.GhostUsers: "migrated_users=3 deleted_rows=12",
	} {
		m.WantRead(candidateQueries()[worker], 0)
		m.CaughtUp()
		from := m.Run(s, worker, counts)
		assert.That(t, strings.Contains(from, "replica"), "%s: read from %q", worker, from)
		m.WantRead(candidateQueries()[worker], -1)
	}
	// To open a pass is to write, and on a busy machine the replica may take longer than that is waited for.
	m.WantRead(candidateQueries()[servicetest.InactiveTokens], 0)
	devdb.Eventually(t, "a pass over the bots on the replica", func() bool {
		r := servicetest.RunTokens(t, s)
		servicetest.WantState(t, r, control.RunSucceeded)
		return strings.Contains(m.ReadFrom(r.ID), "replica")
	})
	m.WantRead(candidateQueries()[servicetest.InactiveTokens], -1)
	m.Want("main", servicetest.QueuedUsers, "201 202 203")
	for _, decision := range []string{"FOR SHARE", "FROM maintenance.runs", "FROM application_settings", "q.hard_delete", "AS ripe"} {
		m.WantRead(decision, 0)
	}
	m.Want("main", `SELECT count(DISTINCT lsn) FROM maintenance.replica_positions WHERE name <> 'somebody'`, "4")
}

func TestFault_Replica_WhileItLacksTheWorkersLastWriteThePrimaryIsRead(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	m.Candidates()
	s := m.Service()
	for worker, counts := range map[string]string{
		servicetest.InactiveTokens: "examined_users=3 scheduled_jobs=3", servicetest.PlaceholderUsers: "scheduled_jobs=3", servicetest.AdjournedGroups: "scheduled_jobs=3",
		servicetest.GhostUsers: "migrated_users=3 deleted_rows=12",
	} {
		m.Pause()
		m.Exec("main", `INSERT INTO maintenance.feature_flags VALUES ($1, true)`, worker)
		assert.Equal(t, m.Run(s, worker, counts), "primary", worker+", first run: read from")
		m.InFavour()
		again := ""
		if worker == servicetest.InactiveTokens {
			again = "examined_users=3"
		}
		assert.Equal(t, m.Run(s, worker, again), "primary", worker+", replay paused: read from")
		m.Replay()
		m.Pause()
		// It does not wait for the writes of others.
		m.Exec("main", `INSERT INTO maintenance.feature_flags VALUES ($1, true)`, worker+" again")
		want := "replica"
		if worker == servicetest.InactiveTokens {
			want = "primary" // to open a pass is to write
		}
		from := m.Run(s, worker, again)
		assert.That(t, strings.Contains(from, want), "%s, replayed: read from %q", worker, from)
		m.Replay()
	}
}

func TestFault_Replica_StaleCandidatesDecideNothing(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	s := m.Service()
	m.Candidates()
	m.Detail(305, 0, "NULL")
	m.Detail(306, 14, "NULL")
	m.Replayed(servicetest.PlaceholderUsers, servicetest.AdjournedGroups, servicetest.GhostUsers)
	m.Pause()
	// Another worker has tried them: one now, the other for the last time.
	m.Exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() WHERE id = 305`)
	m.Exec("main", `UPDATE import_placeholder_user_details SET deletion_attempts = 15 WHERE id = 306`)
	m.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 401 WHERE id = 301`)
	m.Detail(304, 0, "NULL")
	m.Exec("main", `DELETE FROM group_deletion_schedules WHERE group_id = 401`)
	m.Exec("main", `UPDATE group_deletion_schedules SET marked_for_deletion_on = current_date WHERE group_id = 402`)
	m.Exec("main", `DELETE FROM ghost_user_migrations WHERE user_id = 501`)
	m.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() + interval '1 hour' WHERE user_id = 502`)
	for worker, counts := range map[string]string{
		// The end of the placeholders is searched for on the primary.
		servicetest.PlaceholderUsers: "scheduled_jobs=3",
		servicetest.AdjournedGroups:  "scheduled_jobs=1", servicetest.GhostUsers: "migrated_users=1 deleted_rows=4",
	} {
		m.InFavour()
		from := m.Run(s, worker, counts)
		assert.That(t, strings.Contains(from, "replica"), "%s: read from %q", worker, from)
	}
	m.Want("main", servicetest.JobsOfPlaceholders, "302 303 304")
	m.Want("main", `SELECT string_agg(args ->> 'group_id', ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "403")
	m.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE id > 500 AND id < 600`, "501 502")
	m.Want("main", `SELECT string_agg(deletion_attempts::text, ' ' ORDER BY id) FROM import_placeholder_user_details WHERE id IN (301, 305, 306)`, "0 0 15")
}

func TestFault_Replica_BacklogsAreReadThereAndItsLossInTheMiddleOfARunCostsNothing(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	m.Candidates()
	m.Gate("main", "import_placeholder_user_details", "OLD.id = 302")
	s := m.Service()
	m.CaughtUp()
	devdb.Eventually(t, "all backlogs to be read from the replica", func() bool {
		fresh := m.Service(servicetest.With(func(c *lfk.Config) { c.Definitions = servicetest.Definitions(t, devdb.Definitions()) }))
		all := assert.Must(fresh.Status(t.Context(), ""))(t)
		return !slices.ContainsFunc(all, func(st status.Worker) bool {
			if st.Worker == servicetest.PlaceholderUsers {
				assert.Equal(t, st.Backlog.Due, 3, "the placeholders' backlog")
			}
			return strings.Contains(st.ConditionDetail, "backlog of main was read from the primary")
		})
	})
	m.Shut("main", servicetest.App)
	r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.PlaceholderUsers, Async: true}))(t)
	m.AtGate("main", servicetest.App)
	// If it was late before, it is not read for a second.
	m.InFavour()
	assert.NoError(t, m.Standby.Kill())
	m.Lift("main", servicetest.App)
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, control.RunSucceeded, "scheduled_jobs=3")
	m.Want("main", servicetest.JobsOfPlaceholders, "301 302 303")
	// One that lags again just then is skipped for a second, and its loss is found later.
	devdb.Eventually(t, "the replica to be left out", func() bool {
		st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
		assert.That(t, st.Condition != status.ConditionFailing, "condition %s", st.Condition)
		return strings.Contains(st.ConditionDetail, "was read from the primary, because ")
	})
	assert.Equal(t, strings.Count(m.Log.String(), "replica skipped"), 1, "lines that the replica was not read")
}

func TestFault_Replica_AfterARunThatDiedBeforeItsLastWriteWasRememberedThePrimaryIsRead(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	s := m.Service()
	m.Run(s, servicetest.PlaceholderUsers, "")
	m.Candidates()
	m.Gate("main", "import_placeholder_user_details", "OLD.id = 302")
	m.Pause()
	m.Shut("main", "doomed")
	doomed := m.Start("doomed", devdb.Definitions(), func(o *servicetest.Order) {
		o.Worker, o.Database, o.BatchSize, o.Replica = servicetest.PlaceholderUsers, "", 1, m.MirrorURL()
	})
	m.AtGate("main", "doomed")
	// Two pages are worked side by side: the first one may be in flight yet.
	m.Eventually("main", servicetest.JobsOfPlaceholders, "301")
	m.WantRead(candidateQueries()[servicetest.PlaceholderUsers], -1)
	doomed.Kill()
	m.Lift("main", "doomed")
	m.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	m.Exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE name = $1`, servicetest.PlaceholderUsers)
	m.Want("main", fmt.Sprintf(`SELECT l.epoch - p.epoch FROM maintenance.leases l JOIN maintenance.replica_positions p USING (name) WHERE name = '%s'`, servicetest.PlaceholderUsers), "1")
	assert.Equal(t, m.Run(s, servicetest.PlaceholderUsers, "scheduled_jobs=2"), "primary", "read from")
	m.Want("main", servicetest.JobsOfPlaceholders, "301 302 303")
	m.Want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "1 1 1")
}

// TestFault_Replica_PipelineOracle pauses and resumes replay between the rounds.
func TestFault_Replica_PipelineOracle(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	p := &pipelineRun{Estate: m.Estate, oracle: oracle.Generate(7, 1), change: []func(*service.Config){servicetest.LogTo(m.Log)}}
	p.load()
	p.Gate("main", "notes")
	p.onRound = func(round int) {
		m.Replay()
		if round%2 == 1 {
			m.Pause()
		}
	}
	p.replace()
	p.killed(func(o *servicetest.Order) {
		o.Worker, o.Database, o.Replica = servicetest.GhostUsers, "", m.MirrorURL()
	})
	p.toTheEnd()
	m.Replay()
	p.compare()
	said := m.Log.String()
	assert.That(t, strings.Contains(said, `"read_from":"replica`) && strings.Contains(said, "primary"),
		"the replica was not read, or the primary never")
}

// candidateQueries are what the workers search for candidates with.
func candidateQueries() map[string]string {
	return map[string]string{
		servicetest.InactiveTokens: "AS idle", servicetest.PlaceholderUsers: "eligible_for_deletion ORDER BY id", servicetest.AdjournedGroups: "candidates AS MATERIALIZED",
		servicetest.GhostUsers: "q.consume_after <= $1",
	}
}

// namesOfUsers is in the last statement of every plan of a user.
const namesOfUsers = "SELECT x.username AS name FROM users x"

func TestFault_Replica_PlansAreReadThereOrWhereItIsLateOrDownOnThePrimary(t *testing.T) {
	m := servicetest.NewMirrored(servicetest.Parallel(t))
	m.Candidates()
	s := m.Service()
	planned := func() *plan.Plan {
		t.Helper()
		return assert.Must(s.PlanDeletion(t.Context(), "user", 501))(t)
	}
	same := func(what string, got, want *plan.Plan) {
		t.Helper()
		assert.That(t, reflect.DeepEqual(got.Tables, want.Tables) && got.Digest == want.Digest && got.Name == want.Name,
			"%s: %+v, want %+v", what, got, want)
	}
	// After the writes of other tests the standby may lag for a moment.
	readThere := func() (p *plan.Plan) {
		t.Helper()
		before := m.Asked(namesOfUsers)
		devdb.Eventually(t, "a plan read on the standby", func() bool {
			m.CaughtUp()
			p = planned()
			return m.Asked(namesOfUsers) == before+1
		})
		return p
	}
	first := readThere()
	asked := m.Asked(namesOfUsers)

	// Late: what was just written is in the plan, so it is the primary's.
	m.Pause()
	m.Exec("main", `INSERT INTO emails (user_id, email, created_at, updated_at) VALUES (501, 'another@x', now(), now())`)
	late := planned()
	m.WantRead(namesOfUsers, asked)
	assert.That(t, late.Digest != first.Digest, "a row more, and the plan is the same: %+v", late)
	m.Replay()
	same("the replica has caught up", readThere(), late)
	asked = m.Asked(namesOfUsers)

	// It answers, but cannot be read: the primary is asked for the whole plan.
	assert.Must(m.Mirror.Exec(t.Context(), `ALTER SYSTEM SET search_path = 'nowhere'`))(t)
	m.OnMirror(`SELECT pg_reload_conf()`)
	same("the replica refuses", planned(), late)
	m.WantRead(namesOfUsers, asked)

	assert.NoError(t, m.Standby.Kill())
	same("the replica is down", planned(), late)
}
