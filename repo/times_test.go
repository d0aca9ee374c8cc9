package repo_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDatabase_TimesThatNobodyCanCarryAreTheNearestOnesThatCanBe(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	const first, last = "0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999999Z"
	times := map[string]string{
		"'2026-02-28 23:59:59.123456+00'::timestamptz": "2026-02-28T23:59:59.123456Z",
		"'2026-02-28 23:59:59.123456'::timestamp":      "2026-02-28T23:59:59.123456Z",
		"'2026-02-28'::date":                           "2026-02-28T00:00:00Z",
	}
	for _, kind := range []string{"timestamptz", "timestamp", "date"} {
		for value, nearest := range map[string]string{
			"infinity": last, "-infinity": first, "10000-01-02": last, "294276-12-30": last, "0001-01-02 BC": first, "4713-12-31 BC": first,
		} {
			times["'"+value+"'::"+kind] = nearest
		}
	}
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		d := servicetest.Open(t, b.with("timezone=Asia/Tokyo&default_query_exec_mode="+mode))
		for sql, want := range times {
			one, zero := time.Time{}, time.Unix(1, 0)
			var two, none *time.Time
			if err := d.Jobs.Pool().QueryRow(context.Background(), "SELECT "+sql+", "+sql+", NULL::timestamptz, NULL::timestamptz").Scan(&one, &two, &none, &zero); err != nil ||
				none != nil || !zero.IsZero() {
				t.Errorf("%s %s: %v, NULL is %v, %s", mode, sql, err, none, zero)
				continue
			}
			for _, got := range []time.Time{one, *two} {
				assert.Equal(t, got.Format(time.RFC3339Nano), want, mode, sql)
				if _, err := json.Marshal(got); err != nil || got.IsZero() || timestamppb.New(got).CheckValid() != nil {
					t.Errorf("%s %s: %s cannot be carried (%v)", mode, sql, got, err)
				}
			}
		}
	}
}

func TestSettings_TimesAreReadWhateverTheirForm(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`INSERT INTO maintenance.pauses (worker, reason, paused_by, since) VALUES ('w', '', '', now() - interval '3 hours');
		INSERT INTO maintenance.runs (id, worker, trigger, state, started_at, heartbeat_ttl)
		VALUES (gen_random_uuid(), 'w', 'request', 'running', now() - interval '2 hours', '1 hour');
		INSERT INTO maintenance.river_job (kind, args, max_attempts, scheduled_at) VALUES ('k', '{}', 1, now() - interval '1 hour')`)
	for _, style := range []string{"iso_8601", "sql_standard", "postgres_verbose"} {
		name := b.value(`SELECT current_database()`)
		b.exec(`ALTER DATABASE ` + name + ` SET IntervalStyle = ` + style + `; ALTER DATABASE ` + name + ` SET DateStyle = 'German';
			ALTER DATABASE ` + name + ` SET TimeZone = 'America/St_Johns'; ALTER DATABASE ` + name + ` SET client_encoding = 'LATIN1'`)
		d := servicetest.Open(t, b.with("default_query_exec_mode=exec"))
		figures, err := d.History.WorkerFigures(t.Context(), []string{"w"})
		assert.That(t, err == nil && figures[0].Paused >= 3*time.Hour, "%v %v %v", style, figures, err)
		runs, err := d.History.RunFigures(t.Context(), []string{"w"}, []string{""})
		assert.That(t, err == nil && runs[0].Running >= 2*time.Hour, "%v %v %v", style, runs, err)
		jobs, err := d.Jobs.CountJobs(t.Context())
		assert.That(t, err == nil && len(jobs) == 1 && jobs[0].Overdue >= time.Hour, "%v %v %v", style, jobs, err)
		if _, err := d.History.Load(t.Context(), control.LoadProbe{Replicas: true, WAL: true, Locks: true}); err != nil {
			t.Error(style, err)
		}
	}
}
