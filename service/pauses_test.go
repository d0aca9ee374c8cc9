package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// pausedBy is the name under which a worker is paused, "" if it is not, by a dry run.
func pausedBy(t *testing.T, s *service.Service, worker string) string {
	t.Helper()
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: worker, DryRun: true}))(t)
	assert.Equal(t, r.State, control.RunSucceeded, "the dry run of "+worker)
	_, paused, ok := strings.Cut(r.Reason, "WORKER_PAUSED: ")
	if !ok || strings.HasPrefix(paused, worker+" is paused by ") {
		return strings.Repeat(worker, strings.Count(r.Reason, "WORKER_PAUSED"))
	}
	assert.Contains(t, paused, "all workers are paused by ")
	return fault.AllWorkers
}

func TestPause(t *testing.T) {
	inTurn(t, servicetest.Small, map[string]func(*servicetest.Estate){
		"PauseBySQL_WithoutAReasonStopsARunAtWork":          pauseBySQLWithoutAReasonStopsARunAtWork,
		"PauseWorker_TheLastPauseCountsAndEndsByItself":     pauseWorkerTheLastPauseCountsAndEndsByItself,
		"PauseWorker_NeedsAReasonAndATTLFromASecondToAYear": pauseWorkerNeedsAReasonAndATTLFromASecondToAYear,
	})
}

func TestPauseWorker_OfAllWorkersHoldsForEachOfThem(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	s, replica := e.Service(servicetest.OneChild, e.WithQueue), e.Service(servicetest.OneChild, e.WithQueue, servicetest.Audited)
	st := servicetest.Pause(t, s, fault.AllWorkers)
	assert.That(t, st.Worker == "*" && st.Condition == status.ConditionPaused && st.Paused != nil &&
		st.Paused.Reason == "an incident" && st.Paused.By == "alice", "%+v", st)
	all := assert.Must(replica.Status(context.Background(), ""))(t)
	assert.Require(t, len(all) == len(servicetest.Workers()), "%v", all)
	for _, w := range all {
		assert.Equal(t, pausedBy(t, replica, w.Worker), fault.AllWorkers, w.Worker+" is paused by")
		since := "since " + w.Paused.Since.UTC().Format(time.RFC3339)
		if w.Condition != status.ConditionPaused || w.Paused.By != "alice" || !strings.Contains(w.ConditionDetail, "all workers are paused by alice "+since+" (an incident)") ||
			!strings.Contains(w.ConditionDetail, "caretaker resume --all") {
			t.Errorf("%s: %s, %s", w.Worker, w.Condition, w.ConditionDetail)
		}
	}
	r := fired(t, replica, servicetest.AdjournedGroups, time.Now().Truncate(time.Minute))
	assert.That(t, r.State == control.RunSkipped && strings.Contains(r.Reason, "WORKER_PAUSED"), "%+v", r)

	// The end of it leaves those that are paused by themselves.
	servicetest.Resume(t, s, fault.AllWorkers)
	servicetest.Pause(t, s, servicetest.AdjournedGroups)
	servicetest.Pause(t, s, fault.AllWorkers)
	assert.Equal(t, pausedBy(t, s, servicetest.AdjournedGroups), fault.AllWorkers, "the pause of all comes first")
	st = servicetest.Resume(t, s, fault.AllWorkers)
	if st.Paused != nil || st.Condition != status.ConditionIdle || !strings.Contains(st.ConditionDetail, "also paused individually: "+servicetest.AdjournedGroups) {
		t.Errorf("%+v", st)
	}
	for worker, want := range map[string]string{servicetest.LooseForeignKeys: "", servicetest.AdjournedGroups: servicetest.AdjournedGroups} {
		assert.Equal(t, pausedBy(t, s, worker), want, worker+" is paused by")
	}

	// The other way round: a worker resumed while all are paused.
	servicetest.Pause(t, s, fault.AllWorkers)
	st = servicetest.Resume(t, s, servicetest.AdjournedGroups)
	assert.That(t, st.Condition == status.ConditionPaused && strings.Contains(st.ConditionDetail, "all workers are paused"), "%+v", st)
	servicetest.Resume(t, s, fault.AllWorkers)
	assert.Equal(t, pausedBy(t, s, servicetest.AdjournedGroups), "", "paused by")
	// The second time there is nothing to resume.
	assert.Equal(t, servicetest.Resume(t, s, fault.AllWorkers).ConditionDetail, "no global pause is active", "a second end")
}

func pauseBySQLWithoutAReasonStopsARunAtWork(e *servicetest.Estate) {
	t := e.T
	s, r, before := e.Halfway()
	e.Exec("main", `INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', '', 'me')`)
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
}

func pauseWorkerTheLastPauseCountsAndEndsByItself(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(3)
	s := e.Service(servicetest.OneChild)
	for _, c := range []struct {
		worker, reason string
		ttl            time.Duration
	}{
		{servicetest.LooseForeignKeys, "short", time.Minute},
		{servicetest.LooseForeignKeys, "for good", 0},
		{servicetest.LooseForeignKeys, "long", time.Hour},
		{" * ", " soon over ", time.Second},
	} {
		st := assert.Must(s.PauseWorker(context.Background(), c.worker, c.reason, "alice", c.ttl))(t)
		if p := st.Paused; p == nil || p.Reason != strings.TrimSpace(c.reason) || p.Until.IsZero() != (c.ttl == 0) ||
			c.ttl != 0 && p.Until.Sub(p.Since).Round(time.Second) != c.ttl || strings.Contains(st.ConditionDetail, " until ") != (c.ttl != 0) {
			t.Errorf("%+v, %s, want %s for %s", p, st.ConditionDetail, c.reason, c.ttl)
		}
	}
	_, err := request(s, "once", false)
	assert.That(t, err != nil, "the run was not refused")
	// As if the time had passed.
	e.Exec("main", `UPDATE maintenance.pauses SET since = since - interval '2 hours', until = until - interval '2 hours'`)
	assert.Must(request(s, "once", false))(t)
	st := servicetest.Status(t, s)
	assert.That(t, st.Paused == nil && st.Condition == status.ConditionIdle, "%s, pause %+v", st.Condition, st.Paused)
	for range 2 { // the second time it is not paused
		st := servicetest.Resume(t, s, servicetest.LooseForeignKeys)
		assert.That(t, st.Paused == nil, "%+v", st.Paused)
	}
}

func pauseWorkerNeedsAReasonAndATTLFromASecondToAYear(e *servicetest.Estate) {
	t := e.T
	s := e.Service(servicetest.OneChild)
	for _, c := range []struct {
		reason, field string
		ttl           time.Duration
	}{
		{"", "reason", 0},
		{" \n", "reason", 0},
		{strings.Repeat("ü", 501), "reason", 0},
		{"r", "ttl", -time.Second},
		{"r", "ttl", time.Nanosecond},
		{"r", "ttl", time.Second - 1},
		{"r", "", time.Second},
		{"r", "", 365 * 24 * time.Hour},
		{"r", "ttl", 365*24*time.Hour + 1},
		{"r", "ttl", 1<<63 - 1},
	} {
		for _, worker := range []string{servicetest.LooseForeignKeys, fault.AllWorkers} {
			_, err := s.PauseWorker(context.Background(), worker, c.reason, "alice", c.ttl)
			var invalid *fault.InvalidArgumentError
			if is := errors.As(err, &invalid); is != (c.field != "") || is && (invalid.Field != c.field || c.field == "ttl" && invalid.Description != service.AllowedTTL) {
				t.Errorf("%s: reason of %d bytes, ttl %s: %v", worker, len(c.reason), c.ttl, err)
			}
		}
	}
	st := assert.Must(s.PauseWorker(context.Background(), fault.AllWorkers, "r", strings.Repeat("ü", 1000), 0))(t)
	assert.That(t, len([]rune(st.Paused.By)) == 200, "%+v", st.Paused)
	_, err := s.PauseWorker(context.Background(), "nobody", "fine", "alice", 0)
	isError(t, "pause", err, fault.ErrUnknownWorker)
	_, err = s.ResumeWorker(context.Background(), "nobody", "")
	isError(t, "resume", err, fault.ErrUnknownWorker)
}

func TestCancelJob_NeverStartsOrStopsAfterItsStatementUntilItIsRetried(t *testing.T) {
	g := family(servicetest.New(servicetest.Parallel(t), "main", "main"))
	g.Run("scheduled_jobs=1")
	job := assert.Must(g.Service.CancelJob(t.Context(), 1, "not this one", "ann"))(t)
	assert.Require(t, job.State == "cancelled" && job.Reason == "CANCELLED", "%+v", job)
	const words = "job 1 was cancelled by ann: not this one; to undo the cancellation, run `caretaker jobs retry 1`"
	plan := assert.Must(g.Service.PlanDeletion(t.Context(), "group", 10))(t)
	assert.That(t, plan.Refused != nil && plan.Refused.Reason+": "+plan.Refused.Detail == "CANCELLED: "+words && len(plan.Tables) != 0,
		"%+v", plan)
	// Nor is it queued again without the operator.
	g.Run("held_groups=1")
	g.WantLog(1, "group needs attention", "reason=CANCELLED", "job 1 was cancelled by ann: not this one")
	servicetest.WantCandidates(t, g.DryRun("held_groups=1"), "group 10 g10 hold CANCELLED: "+words)
	g.Want("main", `SELECT count(*) FROM maintenance.river_job`, "1")

	// One running stops after its statement.
	assert.Must(g.Service.RetryJob(t.Context(), 1))(t)
	g.Gate("main", "project_repositories")
	g.Shut("main", servicetest.App)
	q := g.Queue()
	assert.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
	g.AtGate("main", servicetest.App)
	job = assert.Must(g.Service.CancelJob(t.Context(), 1, "stop", "ann"))(t)
	assert.Require(t, job.State == "running", "%+v", job)
	c := job.Cancellation
	assert.That(t, c != nil && c.Reason == "stop" && c.By == "ann" && !c.At.IsZero(), "the cancellation is %+v", c)
	g.Lift("main", servicetest.App)
	g.Eventually("main", `SELECT state::text FROM maintenance.river_job WHERE id = 1`, "cancelled")
	assert.NoError(t, q.Stop(context.Background()))
	g.WantJob("cancelled cancelled CANCELLED")
	g.Want("main", `SELECT count(*) FROM projects`, "3")
	g.Want("main", `SELECT count(*) FROM maintenance.group_removals`, "1")
	g.Run("held_groups=1")
	g.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'destroy_group'`, "1")

	assert.Must(g.Service.RetryJob(t.Context(), 1))(t)
	g.Attempts("completed succeeded")
	job = assert.Must(g.Service.Job(t.Context(), 1))(t)
	gone := map[string]int64{}
	for _, c := range job.Tables {
		gone[c.Table] = c.Deleted
	}
	g.Want("main", `SELECT string_agg(path, ' ' ORDER BY path) FROM maintenance.outside_paths WHERE job_id = 1`,
		"@hashed/1 @hashed/2 @hashed/3 @snippets/1 @snippets/2 @snippets/3")
	left := jobqueue.OutsideCount{All: 6, Pending: 6}
	assert.That(t, job.Cancellation == nil && gone["projects"] == 3 && job.Outside == left && job.Worked > 0, "%+v", job)
}
