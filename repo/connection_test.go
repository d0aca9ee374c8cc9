package repo_test

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

func TestSettings_TimesAreReadWhateverTheirForm(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.exec(`INSERT INTO maintenance.pauses (worker, reason, paused_by, since) VALUES ('w', '', '', now() - interval '3 hours');
		INSERT INTO maintenance.runs (id, worker, trigger, state, started_at, heartbeat_ttl)
		VALUES (gen_random_uuid(), 'w', 'request', 'running', now() - interval '2 hours', '1 hour');
		INSERT INTO maintenance.river_job (kind, args, max_attempts, scheduled_at) VALUES ('k', '{}', 1, now() - interval '1 hour')`)
	for _, style := range []string{"iso_8601", "sql_standard", "postgres_verbose"} {
		name := b.value(`SELECT current_database()`)
		b.exec(`ALTER DATABASE ` + name + ` SET IntervalStyle = ` + style + `; ALTER DATABASE ` + name + ` SET DateStyle = 'German';
			ALTER DATABASE ` + name + ` SET TimeZone = 'America/St_Johns'; ALTER DATABASE ` + name + ` SET client_encoding = 'LATIN1'`)
		d := open(t, b.with("default_query_exec_mode=exec"))
		figures, err := d.WorkerFigures(t.Context(), []string{"w"})
		if err != nil || figures[0].Paused < 3*time.Hour {
			t.Error(style, figures, err)
		}
		runs, err := d.RunFigures(t.Context(), []string{"w"}, []string{""})
		if err != nil || runs[0].AtWork < 2*time.Hour {
			t.Error(style, runs, err)
		}
		jobs, err := d.CountJobs(t.Context())
		if err != nil || len(jobs) != 1 || jobs[0].Overdue < time.Hour {
			t.Error(style, jobs, err)
		}
		if _, err := d.Load(t.Context(), repo.LoadProbe{Replicas: true, WAL: true, Archive: true, Locks: true, Autovacuum: true}); err != nil {
			t.Error(style, err)
		}
	}
}
