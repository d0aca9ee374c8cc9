package service_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestSampleBacklogs_KeepsOneRowAMinuteForADay(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.Exec("main", `INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(hours => i), $1, i, 0, 0, 0 FROM generate_series(1, 40) i`, servicetest.LooseForeignKeys)
	e.Deleted("main", "p", 1, 5)
	for range 2 {
		servicetest.NoError(t, s.SampleBacklogs(t.Context()))
	}
	e.Want("main", `SELECT count(*) BETWEEN 24 AND 26 FROM maintenance.backlog_samples WHERE minute < now() - interval '30 minutes'`, "true")
	e.Want("main", `SELECT count(*) <= 2 FROM maintenance.backlog_samples WHERE worker = '`+servicetest.LooseForeignKeys+`' AND minute > now() - interval '30 minutes'`, "true")
	samples := servicetest.Must(s.BacklogSamples(t.Context()))(t)
	all := samples[servicetest.LooseForeignKeys]
	if n := len(all); n < 24 || n > 26 || all[n-1].Pending != 5 || all[n-1].Due != 5 || !all[0].At.Before(all[1].At) {
		t.Errorf("got %+v", all)
	}
}

func TestSampleBacklogs_LeavesOutWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main", "ci")
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.Open[1].Close()
	servicetest.NoError(t, s.SampleBacklogs(t.Context()))
	e.Want("main", `SELECT count(*) FROM maintenance.backlog_samples WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "0")
	e.Want("main", `SELECT count(*) > 0 FROM maintenance.backlog_samples`, "true")
}

func TestJobCounts_StopCounting(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	s := e.Service("")
	e.Exec("main", `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at)
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
