// Package status reports the condition of each worker, the problems that keep it from running, and
// its backlog.
//
// A status call closes the runs of processes that died. Then it only reads: the records in main,
// and leases and backlogs in each database. It answers even while databases do not. The condition
// is then [ConditionFailing], with the last known figures.
//
// The condition of a worker is the first that applies, in the order of the constants. Its detail
// has the text of that condition, then the remarks.
package status

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// Condition is the state of a worker: why it is running or not.
type Condition string

// The conditions, highest priority first.
const (
	ConditionRunning            Condition = "RUNNING"
	ConditionPaused             Condition = "PAUSED"
	ConditionNotConfigured      Condition = "NOT_CONFIGURED"
	ConditionFailing            Condition = "FAILING"
	ConditionLeaseHeldElsewhere Condition = "LEASE_HELD_ELSEWHERE"
	ConditionThrottled          Condition = "THROTTLED"
	ConditionDisabled           Condition = "DISABLED"
	ConditionSchedulerOff       Condition = "SCHEDULER_OFF"
	ConditionIdle               Condition = "IDLE"
)

// Worker is the status of a worker. Nil and zero times mean that the value does not exist.
type Worker struct {
	Worker, Schedule    string
	NextRunAt           time.Time
	Paused              *run.Pause
	Leases              []run.Lease
	CurrentRun, LastRun *run.Run
	LastSuccessAt       time.Time
	Backlog             Backlog
	// NotUsed is why the worker is not used. It is not configured, or not enabled on this server or
	// any server that has a ledger for it, "" if it is used.
	NotUsed string
	// BacklogUnknown: this server has read none of the backlog since its start.
	BacklogUnknown  bool
	Condition       Condition
	ConditionDetail string
	// Failing is the first problem, set with ConditionFailing.
	Failing *Problem
	// Databases are those of a worker with several, those with a problem first.
	Databases []Database
	// places are all its databases.
	places []Database
}

// Config is what a Reporter needs in addition to the engine.
type Config struct {
	// Queue is the queue of deferred jobs. nil means none.
	Queue jobqueue.Queue
	// SchedulerOff means that no run starts by itself on this server.
	SchedulerOff bool
	// Remark returns a remark on a worker, or "".
	Remark func(worker string) string
}

// Reporter reports the status of the workers of a Runner. Any goroutine may call its methods.
type Reporter struct {
	runner     *run.Runner
	dispatcher *schedule.Dispatcher
	pool       *job.Pool
	config     Config
}

// New makes a Reporter without connecting.
func New(r *run.Runner, d *schedule.Dispatcher, p *job.Pool, c Config) *Reporter {
	return &Reporter{r, d, p, c}
}

// maxParallel is the number of workers read at the same time. Each takes up to three connections of
// main, which work needs too.
const maxParallel = 3

// Status returns the status of a worker, or of all workers (""). All workers does not include
// optional ones that were never enabled on any server and have never run.
func (r *Reporter) Status(ctx context.Context, name string) ([]Worker, error) {
	workers, err := r.named(name)
	if err != nil {
		return nil, err
	}
	all := make([]Worker, len(workers))
	shared := sync.OnceValue(func() overview { return r.overview(ctx) })
	var parallel errgroup.Group
	parallel.SetLimit(maxParallel)
	for i, w := range workers {
		parallel.Go(func() error {
			all[i] = r.status(ctx, w, shared)
			return nil
		})
	}
	_ = parallel.Wait()
	return slices.DeleteFunc(all, func(st Worker) bool {
		w, _ := r.runner.Worker(st.Worker)
		return name == "" && w.Optional && w.Config.Disabled() && st.NotUsed != "" && st.LastRun == nil
	}), nil
}

// named returns the worker with a name, or all workers for "".
func (r *Reporter) named(name string) ([]*run.Worker, error) {
	if name == "" {
		return r.runner.Workers, nil
	}
	w, err := r.runner.Worker(name)
	return []*run.Worker{w}, err
}

// status returns the status of one worker.
func (r *Reporter) status(ctx context.Context, w *run.Worker, shared func() overview) Worker {
	st, read := r.read(ctx, w, shared)
	fires := r.dispatcher.Health(ctx, w)
	if read.off == "" && read.missing == "" {
		st.NextRunAt = w.Next(fires.Now)
	}
	found, answering := r.problems(ctx, w, read)
	st.places, st.Databases = read.databases, withProblems(read.databases, found)
	early, undone := lastRun(w, st)
	throttled := ""
	if len(found) == 0 {
		throttled = r.throttled(ctx, w, st, early)
	}
	if st.CurrentRun == nil {
		// Without a cron, no other server has a ledger of its fires either.
		disabled := w.Config.Disabled() && fires.Cron == ""
		st.NotUsed = cmp.Or(read.missing, when(disabled, schedule.NotEnabled(w.Name)))
	}
	// The backlog of a worker that is not configured is shown only if it has entries.
	none := st.Backlog.Pending == 0 && st.Backlog.Dead == 0
	st.BacklogUnknown = st.BacklogUnknown || read.missing != "" && none
	st.conclude(slices.Concat(read.remarks, answering, []string{
		schedule.Remark(fires),
		r.config.Remark(w.Name),
		when(st.Backlog.AtLeast, "the backlog figures are lower bounds"),
		when(!st.NextRunAt.IsZero(), w.UnscheduledRemark),
		when(throttled == "", early),
		undone,
	}, r.pool.FailedJobs(w, shared().failed)), []candidate{
		{ConditionRunning, running(st.CurrentRun, throttled)},
		{ConditionPaused, paused(w.Name, st.Paused)},
		{ConditionNotConfigured, read.missing},
		{ConditionFailing, failing(found)},
		{ConditionLeaseHeldElsewhere, r.elsewhere(st.Leases)},
		{ConditionThrottled, throttled},
		{ConditionDisabled, when(!r.config.SchedulerOff, read.off)},
		{ConditionSchedulerOff, read.off},
		{ConditionIdle, idle(st)},
	})
	if st.Condition == ConditionFailing {
		st.Failing = &found[0]
	}
	return st
}

// OfPauses returns the status of all workers together, which has only the pauses. ended: a call
// has just ended the pause of all workers.
func OfPauses(all []run.Pause, ended bool) Worker {
	st := Worker{Worker: fault.AllWorkers, BacklogUnknown: true}
	var alone []string
	for _, p := range all {
		if p.Worker == fault.AllWorkers {
			st.Paused = &p
		} else {
			alone = append(alone, p.Worker)
		}
	}
	individually := "also paused individually: " + strings.Join(alone, ", ")
	none := cmp.Or(when(ended, "the global pause has ended"), "no global pause is active")
	st.conclude([]string{when(len(alone) > 0, individually)}, []candidate{
		{ConditionPaused, paused(fault.AllWorkers, st.Paused)},
		{ConditionIdle, none},
	})
	return st
}

// candidate is a possible condition of a worker. Its text is "" if the condition does not apply.
type candidate struct {
	condition Condition
	text      string
}

// conclude sets the condition to the first candidate with a text, and appends the remarks.
func (st *Worker) conclude(remarks []string, ranked []candidate) {
	for _, c := range ranked {
		switch {
		case c.text == "":
		case st.Condition == "":
			st.Condition, st.ConditionDetail = c.condition, c.text
		case c.condition == ConditionNotConfigured:
			remarks = append(remarks, "not configured: "+c.text)
		}
	}
	for _, remark := range remarks {
		if !strings.Contains(st.ConditionDetail, remark) {
			st.ConditionDetail += "; " + remark
		}
	}
}

// when returns text if holds is true, else "".
func when(holds bool, text string) string {
	if holds {
		return text
	}
	return ""
}
