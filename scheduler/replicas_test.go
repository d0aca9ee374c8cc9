package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jonboulle/clockwork"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
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
		schedule := assert.Must(run.ParseSchedule(schedules[worker]))(l)
		for at := schedule.Next(begin); !at.After(begin.Add(time.Hour)); at = schedule.Next(at) {
			want = append(want, worker+" "+at.Format("15:04"))
		}
	}
	assert.That(l, len(want) == all && all >= 60+30+4+2+1, "%d fires are expected", len(want))
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
}

// standingClockSQL puts a clock that stands still in front of PostgreSQL's own. It stands 15 minutes after midnight of the
// night in which Berlin's clocks go back, and the test advances it through the hour in which they do.
const standingClockSQL = `
CREATE TABLE public.clock (at timestamptz NOT NULL);
INSERT INTO public.clock VALUES ('2026-10-25 00:15:00Z');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM public.clock';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM public.clock'`

func byTheClock(url string) string {
	return url + "&search_path=public,pg_catalog&timezone=Europe/Berlin"
}

// newHour is a main with the reference schema, whose clock stands still.
func newHour(t *testing.T) *lab {
	t.Helper()
	url := databases.Clone(t, devdb.Template{Name: "hour", Schema: "main", Version: standingClockSQL, Prepare: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, standingClockSQL)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
		return migrated.Prepare(ctx, byTheClock(url))
	}})
	conn := assert.Must(pgx.Connect(t.Context(), byTheClock(url)))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &lab{TB: t, url: byTheClock(url), sql: conn}
}

// hourSchedules are the schedules of the hour, by worker: every minute, every two, and daily ones compressed.
func hourSchedules() map[string]string {
	crons := []string{"* * * * *", "*/2 * * * *", "0 1 25 10 *", "7,37 * * * *", "*/15 * * * *"}
	schedules := map[string]string{}
	for key := range new(service.Config).Sections() {
		schedules[strings.TrimPrefix(key, "workers.")] = crons[len(schedules)%len(crons)]
	}
	return schedules
}

// used are those of the workers that are configured on a replica's databases.
func (l *lab) used(r *stepped) map[string]string {
	l.Helper()
	all := assert.Must(r.Status(context.Background(), ""))(l)
	used, schedules := map[string]string{}, hourSchedules()
	for _, st := range all {
		if st.Condition != service.ConditionNotConfigured {
			used[st.Worker] = schedules[st.Worker]
		}
	}
	return used
}

// newReplica is a service as the wiring makes it.
func newReplica(url, name, definitions string) (*service.Service, *repo.Database, error) {
	main, err := repo.Open(context.Background(), "main", url)
	if err != nil {
		return nil, nil, err
	}
	queue, err1 := NewQueue(main, QueueConfig{Logger: slog.New(slog.DiscardHandler)})
	loaded, err2 := loosefk.LoadDefinitions(definitions)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	c := service.Config{Databases: []*repo.Database{main}, Replica: name, Queue: queue, Logger: slog.New(slog.DiscardHandler)}
	service.Settings[loosefk.Config](&c).Definitions = loaded
	schedules := hourSchedules()
	for key, settings := range c.Sections() {
		cron := schedules[strings.TrimPrefix(key, "workers.")]
		reflect.ValueOf(settings).Elem().FieldByName("Schedule").SetString(cron)
	}
	config.Defaults(&c)
	s, err := service.New(c)
	return s, main, err
}

// stepped is a replica whose own clock the test advances, with what is wrong with it.
type stepped struct {
	*service.Service
	name      string
	main      *repo.Database
	scheduler *Scheduler
	clock     *clockwork.FakeClock
	// pace is what its clock advances in a step, jumped how much it was set besides.
	pace   time.Duration
	jumped atomic.Int64
	looked atomic.Int64
	failed atomic.Pointer[error]
}

// RunDue counts looks, and keeps the first error.
func (r *stepped) RunDue(ctx context.Context) error {
	defer r.looked.Add(1)
	err := r.Service.RunDue(ctx)
	if err != nil {
		r.failed.CompareAndSwap(nil, &err)
	}
	return err
}

func (l *lab) replica(name, definitions string, skew, pace time.Duration) *stepped {
	l.Helper()
	r := &stepped{name: name, pace: pace, clock: clockwork.NewFakeClockAt(time.Date(2026, 10, 25, 0, 15, 0, 0, time.UTC).Add(skew))}
	var err error
	if r.Service, r.main, err = newReplica(l.url, name, definitions); err != nil {
		l.Fatal(err)
	}
	r.scheduler, err = newScheduler(r, slog.New(slog.DiscardHandler), wrong{r.clock, func() time.Duration { return time.Duration(r.jumped.Load()) }})
	assert.NoError(l, err)
	r.scheduler.Start()
	l.reach(r, 1)
	return r
}

// stop ends a replica as SIGTERM does.
func (l *lab) stopReplica(r *stepped) {
	l.Helper()
	assert.NoError(l, errors.Join(r.scheduler.Stop(), r.Shutdown(context.Background())))
	r.main.Close()
}

// reach waits until a replica has looked so many times.
func (l *lab) reach(r *stepped, looks int64) {
	l.Helper()
	devdb.Eventually(l, fmt.Sprintf("%s to look %d times", r.name, looks), func() bool { return r.looked.Load() >= looks })
}

// step lets the replicas' clocks go on, and waits for the looks that come of it, which are at the same time.
func (l *lab) step(replicas ...*stepped) {
	l.Helper()
	before := make([]int64, len(replicas))
	for i, r := range replicas {
		before[i] = r.looked.Load()
		l.ready(r)
	}
	for _, r := range replicas {
		r.clock.Advance(r.pace)
	}
	for i, r := range replicas {
		l.reach(r, before[i]+1)
	}
}

// ready waits until both timers, of fires and of dead runs, have been set again.
func (l *lab) ready(r *stepped) {
	l.Helper()
	assert.NoError(l, r.clock.BlockUntilContext(l.Context(), 2))
}

// jump sets a replica's clock by so much. Not while a timer is being set: gocron computes it from two looks at the clock,
// between which a real one, whose times are monotonic, cannot jump.
func (l *lab) jump(r *stepped, by time.Duration) {
	l.Helper()
	l.ready(r)
	r.jumped.Add(int64(by))
}

// replicaVariable makes this program, instead of testing, be a replica of the hour until it is killed: a URL.
const (
	replicaVariable    = "CARETAKER_TEST_REPLICA"
	definitionsFile    = "CARETAKER_TEST_DEFINITIONS"
	doomedReplicaName  = "doomed"
	doomedReplicaPause = 10 * time.Millisecond
)

// doomedReplica looks at the fires without a pause, by a clock that has gone mad.
func doomedReplica(url string) {
	s, _, err := newReplica(url, doomedReplicaName, os.Getenv(definitionsFile))
	if err != nil {
		panic(err)
	}
	clock := clockwork.NewFakeClockAt(time.Unix(0, 0))
	wakes, err := newScheduler(s, slog.New(slog.DiscardHandler), clock)
	if err != nil {
		panic(err)
	}
	wakes.Start()
	_, _ = os.Stdout.WriteString("at work\n")
	for range time.Tick(doomedReplicaPause) {
		clock.Advance(time.Minute)
	}
}

// startDoomed starts a replica that will be killed.
func (l *lab) startDoomed(definitions string) *exec.Cmd {
	l.Helper()
	process := exec.CommandContext(l.Context(), os.Args[0])
	process.Stderr = os.Stderr
	process.Env = append(os.Environ(), replicaVariable+"="+l.url, definitionsFile+"="+definitions)
	output, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	assert.NoError(l, err)
	assert.Must(io.ReadFull(output, make([]byte, len("at work\n"))))(l)
	return process
}

// definitions writes a file with one loose foreign key.
func (l *lab) definitions() string {
	l.Helper()
	file := filepath.Join(l.TempDir(), "definitions.yml")
	assert.NoError(l, os.WriteFile(file, []byte("issues:\n  - {table: projects, column: project_id, on_delete: async_delete}\n"), 0o600))
	return file
}

// quiet waits until no run is at work and no fire is claimed, those of the replica that was killed left aside.
func (l *lab) quiet(allLive bool) {
	l.Helper()
	l.until(fmt.Sprintf(`(SELECT count(*) FROM maintenance.fires WHERE outcome = 'claimed' AND (%[1]t OR claimed_by <> '%[2]s'))
		+ (SELECT count(*) FROM maintenance.runs WHERE state = 'running' AND (%[1]t OR replica <> '%[2]s'))`, allLive, doomedReplicaName), "0")
}
