package web

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestCharts_HaveABarForEachTimeWithASampleOnly(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 4, 30, 0, 0, time.UTC)
	number := func(n int64) *int64 { return &n }
	value := func(v float64) *float64 { return &v }
	row := newDatabaseRow(status.DatabaseFigures{
		Name: "ci", Known: true, Backlog: status.Backlog{Pending: 1234, OldestAt: time.Now().Add(-5 * time.Minute)},
		Load: []load.Measure{{Name: "replica lag", Value: "3s", Limit: "30s", Ratio: 0.1}, {Name: "longest lock wait", Value: "10s", Limit: "5s", Ratio: 2}},
	}, []status.DatabaseSample{
		{At: now.Add(-48 * time.Hour), Pending: number(9)},
		{At: now.Add(-5 * time.Hour), Pending: number(2000), Oldest: value(60), Load: value(0.5)},
		{At: now.Add(-4 * time.Hour), P50: value(0.002), P99: value(0.05)},
		{At: now, Pending: number(1000), Oldest: value(7200)},
	}, now)
	assert.Equal(t, row.Backlog.Values(), "22:00 to 00:00: 2,000 pending, oldest 60 s · 04:00 to 06:00: 1,000 pending, oldest 2 h")
	assert.Equal(t, row.Times.Values(), "00:00 to 02:00: p50 2 ms, p99 50 ms")
	assert.Equal(t, row.Limits.Values(), "22:00 to 00:00: 50% of the limit")
	assert.Equal(t, row.Backlog.Bars[0].Path, "M80 0h8V40h-8z")
	assert.Equal(t, row.Backlog.Bars[1].Path, "M110 20h8V40h-8z")
	assert.That(t, row.Pending == "1,234" && row.Oldest == "5 min" && row.P50 == "" && row.Load == "longest lock wait 10s of 5s" && row.Over, "got %+v", row)
	none := newDatabaseRow(status.DatabaseFigures{Name: "ci"}, nil, now)
	assert.That(t, none.Pending == "" && none.Oldest == "" && none.Load == "" && none.Backlog.Values() == "no sample", "got %+v", none)
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
	body := f.page("/", "Rows changed by runs, last 24 hours", ` deleted, `, `<svg class="bars"`, "p50 2 ms, p99 340 ms", "% of the limit", "Values of the charts")
	assert.That(t, len(body) <= 60_000, "the overview has %d bytes", len(body))
	assert.That(t, strings.Count(body, `<svg class="bars"`) <= 8, "%d charts", strings.Count(body, `<svg class="bars"`))
	others := len(assert.Must(f.service.Status(t.Context(), ""))(t)) - 5 // which have runs
	assert.Equal(t, strings.Count(body, "no run</span>"), others, "workers without a run")
}
