package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// TestFault_Scheduler_AnHourOfReplicasWithWrongClocksRunsEveryFireOnce lives through an hour of main's clock in steps of ten
// seconds: three replicas whose clocks are an hour fast, a year slow, drifting and jumping; one is stopped, one is killed
// with a run in its hands, another two are started. It is the hour in which Berlin's clocks go back.
func TestFault_Scheduler_AnHourOfReplicasWithWrongClocksRunsEveryFireOnce(t *testing.T) {
	t.Parallel()
	l := newHour(t)
	definitions := l.definitions()
	begin := time.Date(2026, 10, 25, 0, 15, 0, 0, time.UTC)
	fast, slow := l.replica("fast", definitions, time.Hour, 11*time.Second), l.replica("slow", definitions, -365*24*time.Hour, 6*time.Second)
	alive := []*stepped{fast, slow}
	killed := l.startDoomed(definitions)
	defer func() { _ = killed.Process.Kill() }()
	const dies = 1200
	for second := 10; second <= 3600; second += 10 {
		l.exec(`UPDATE public.clock SET at = $1`, begin.Add(time.Duration(second)*time.Second))
		if second <= dies && second%240 == 0 {
			// The others look later.
			l.until(`SELECT count(*) > 0 FROM maintenance.fires WHERE claimed_by = 'doomed' AND fire_time = now()`, "true")
		}
		switch second {
		case dies:
			// With a run in its hands that has begun, or one that has just ended: a fire before that is given back, and may be missed.
			l.until(`(SELECT count(*) FROM maintenance.fires WHERE outcome = 'claimed')
				+ (SELECT count(*) FROM maintenance.runs WHERE state = 'running' AND lease_epoch = 0)`, "0")
			_ = killed.Process.Kill()
			_ = killed.Wait()
		case 1800:
			alive = append(alive, l.replica("new", definitions, -3*time.Minute, 10*time.Second))
		case 2400:
			l.stopReplica(fast)
			alive = []*stepped{slow, alive[2], l.replica("newest", definitions, 0, 5*time.Second)}
		}
		l.jump(slow, time.Duration(second%7-3)*time.Hour)
		l.step(alive...)
		l.quiet(second < dies)
	}
	schedules := l.used(alive[0])
	for _, r := range alive {
		l.stopReplica(r)
		if failed := r.failed.Load(); failed != nil {
			t.Errorf("%s: %v", r.name, *failed)
		}
	}
	l.wantHour(begin, schedules)
}

// wantHour fails the test unless the ledger has each fire of the hour once, with its run, and none was missed.
func (l *lab) wantHour(begin time.Time, schedules map[string]string) {
	l.Helper()
	all := 0
	for _, cron := range schedules {
		all += map[string]int{
			"* * * * *": 60, "*/2 * * * *": 30, "0 1 25 10 *": 1, "7,37 * * * *": 2, "*/15 * * * *": 4,
		}[cron]
	}
	var want []string
	for _, worker := range slices.Sorted(maps.Keys(schedules)) {
		schedule := must(run.ParseSchedule(schedules[worker]))(l)
		for at := schedule.Next(begin); !at.After(begin.Add(time.Hour)); at = schedule.Next(at) {
			want = append(want, worker+" "+at.Format("15:04"))
		}
	}
	if len(want) != all || all < 60+30+4+2+1 {
		l.Errorf("%d fires are expected", len(want))
	}
	const utc = `to_char(fire_time AT TIME ZONE 'UTC', 'HH24:MI')`
	l.want(`SELECT string_agg(worker || ' ' || `+utc+`, E'\n' ORDER BY worker, fire_time) FROM maintenance.fires`, strings.Join(want, "\n"))
	l.want(`SELECT coalesce(string_agg(concat_ws(' ', worker, `+utc+`, outcome, reason), ', '), '') FROM maintenance.fires
		WHERE outcome NOT IN ('ran', 'skipped') OR outcome = 'skipped' AND reason <> 'LEASE_HELD'`, "")
	// A lease of the run that was killed is held until it expires, and nothing else is in the way of anything.
	l.want(`SELECT count(*) <= 3 FROM maintenance.fires WHERE outcome = 'skipped'`, "true")
	l.want(`SELECT coalesce(max(started_at - fire_time) <= CASE WHEN reason = '' THEN interval '10 s' ELSE interval '40 s' END, true)
		FROM maintenance.fires GROUP BY reason ORDER BY 1 LIMIT 1`, "true")
	n := fmt.Sprint(len(want))
	l.want(`SELECT count(*) FROM maintenance.runs WHERE trigger = 'schedule'`, n)
	l.want(`SELECT count(DISTINCT r.id) FROM maintenance.runs r JOIN maintenance.fires f ON f.run_id = r.id AND f.worker = r.worker
		AND f.claimed_by = r.replica AND (f.outcome = 'ran') = (r.state <> 'skipped' OR r.reason <> f.reason)`, n)
	if testing.Verbose() {
		l.Log(l.value(`SELECT string_agg(concat_ws(' ', f.*), E'\n') FROM
			(SELECT claimed_by, outcome, reason, count(*), max(started_at - fire_time) FROM maintenance.fires GROUP BY 1, 2, 3 ORDER BY 1, 2) f`))
		l.Log(l.value(`SELECT string_agg(concat_ws(' ', r.*), E'\n') FROM (SELECT worker, state, reason, count(*) FROM maintenance.runs GROUP BY 1, 2, 3 ORDER BY 1, 2) r`))
	}
}
