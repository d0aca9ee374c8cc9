package service_test

import (
	"testing"
)

func TestSampleBacklogs_KeepsOneRowAMinuteForADay(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.exec("main", `INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(hours => i), $1, i, 0, 0, 0 FROM generate_series(1, 40) i`, cleanupWorker)
	e.deleted("main", "p", 1, 5)
	for range 2 {
		if err := s.SampleBacklogs(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.want("main", `SELECT count(*) BETWEEN 24 AND 26 FROM maintenance.backlog_samples WHERE minute < now() - interval '30 minutes'`, "true")
	e.want("main", `SELECT count(*) <= 2 FROM maintenance.backlog_samples WHERE worker = '`+cleanupWorker+`' AND minute > now() - interval '30 minutes'`, "true")
	samples, err := s.BacklogSamples(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := samples[cleanupWorker]
	if n := len(all); n < 24 || n > 26 || all[n-1].Pending != 5 || all[n-1].Due != 5 || !all[0].At.Before(all[1].At) {
		t.Errorf("got %+v", all)
	}
}

func TestSampleBacklogs_LeavesOutWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	s := e.service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.open[1].Close()
	if err := s.SampleBacklogs(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.want("main", `SELECT count(*) FROM maintenance.backlog_samples WHERE worker = '`+cleanupWorker+`'`, "0")
	e.want("main", `SELECT count(*) > 0 FROM maintenance.backlog_samples`, "true")
}

func TestJobCounts_StopCounting(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("")
	e.exec("main", `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at)
		SELECT 'delete_user', '{}', 25, state::maintenance.river_job_state, now(), CASE WHEN state IN ('discarded', 'completed') THEN now() END
		FROM unnest(ARRAY['available', 'discarded', 'completed']) state, generate_series(1, CASE state WHEN 'available' THEN 10001 ELSE 3 END)`)
	counts, err := s.JobCounts(t.Context())
	if err != nil || len(counts) != 2 {
		t.Fatalf("got %+v, %v", counts, err)
	}
	for _, c := range counts {
		available := c.State == "available"
		if c.AtLeast != available || available && c.Jobs != 10_000 || !available && c.Jobs != 3 {
			t.Errorf("got %+v", c)
		}
	}
}
