package web

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestCharts_HaveABarForEachTimeWithASampleOnly(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 4, 30, 0, 0, time.UTC)
	number := func(n int64) *int64 { return &n }
	value := func(v float64) *float64 { return &v }
	row := newDatabaseRow(service.DatabaseState{DatabaseFigures: status.DatabaseFigures{Name: "ci"}}, []status.DatabaseSample{
		{At: now.Add(-48 * time.Hour), Pending: number(9)},
		{At: now.Add(-5 * time.Hour), Pending: number(2000), Oldest: value(60), Load: value(0.5)},
		{At: now.Add(-4 * time.Hour), P50: value(0.002), P99: value(0.05), Pending: number(3000)},
		{At: now, Pending: number(1000), Oldest: value(7200)},
	}, now)
	backlog, times, limits := row.Charts[0], row.Charts[1], row.Charts[2]
	assert.Equal(t, titles(backlog), "22:00 to 00:00: 2,000 pending, oldest 60 s · 00:00 to 02:00: 3,000 pending · 04:00 to 06:00: 1,000 pending, oldest 2 h")
	assert.Equal(t, titles(times), "00:00 to 02:00: p50 2 ms, p99 50 ms")
	assert.Equal(t, titles(limits), "22:00 to 00:00: 50% of the limit")
	assert.Equal(t, backlog.Bars[1].Path, "M90 0h8V40h-8z")
	assert.Equal(t, row.P50, "", "of an earlier step")
	none := newDatabaseRow(service.DatabaseState{}, nil, now)
	assert.That(t, none.P50 == "" && len(none.Charts[0].Bars)+len(none.Charts[1].Bars)+len(none.Charts[2].Bars) == 0, "got %+v", none)
	// Dead items are no pending ones.
	dead := backlogChart([]status.BacklogSample{{At: now, Dead: 5}, {At: now.Add(-time.Hour), Pending: 5, Dead: 5}}, now)
	assert.Equal(t, titles(dead), "03:30 to 04:00: 5 pending, 5 dead · 04:30 to 05:00: 0 pending, 5 dead")
	assert.That(t, dead.Bars[1].Path == dead.Bars[1].Part && dead.Bars[0].Path == "M450 0h8V40h-8z", "got %+v", dead.Bars)
}

// titles returns the values of all bars.
func titles(c chart) string {
	var all []string
	for _, b := range c.Bars {
		all = append(all, b.Title)
	}
	return strings.Join(all, " · ")
}

func TestOverview_HasChartsOfRowsAndDatabasesAndStaysSmall(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl, started_at, finished_at, dry_run, tables)
		SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i * 8 + n), 12, '0'))::uuid, w, 'main',
			'schedule', 'succeeded', '1 minute', at, at, i % 10 = 0, '[{"table": "notes", "deleted": 1000, "updated": 1}, {"table": "issues", "deleted": 0, "updated": 2}]'
		FROM generate_series(1, 279) i CROSS JOIN LATERAL (SELECT now() - i * interval '5 minutes' AS at) t,
			unnest(ARRAY['` + keys + `', '` + tokens + `', 'ghost_user_migration', 'adjourned_group_deletion', 'placeholder_user_cleanup']) WITH ORDINALITY w(w, n)`)
	f.exec(`INSERT INTO maintenance.database_samples (minute, database, pending, oldest, load, p50, p99)
		SELECT date_trunc('minute', now()) - i * interval '1 minute', d, 123456 + i, 4000, 0.42, 0.002, 0.34 FROM generate_series(5, 1400) i, unnest(ARRAY['main', 'ci']) d
		ON CONFLICT DO NOTHING`)
	f.exec(`INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(mins => i), w, 100000 + i * 37 % 1000, 0, 0, 3 FROM generate_series(1, 1400) i,
			unnest(ARRAY['` + keys + `', '` + tokens + `', 'ghost_user_migration', 'adjourned_group_deletion', 'placeholder_user_cleanup']) w(w)`)
	f.fresh()
	f.eventually("/", ` deleted, `, "p50 2 ms, p99 340 ms", "% of the limit")
	body := f.page("/", "Rows changed by runs, last 24 hours", ` deleted, `, `<svg class="bars"`, "p50 2 ms, p99 340 ms", "% of the limit", "Values of the charts")
	assert.That(t, len(body) <= 60_000, "the overview has %d bytes", len(body))
	assert.That(t, strings.Count(body, `<svg class="bars"`) <= 8, "%d charts", strings.Count(body, `<svg class="bars"`))
	others := len(assert.Must(f.service.Status(t.Context(), ""))(t)) - 5 // which have runs
	assert.Equal(t, strings.Count(body, "no run</span>"), others, "workers without a run")
}
