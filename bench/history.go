package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/telemetry"
)

// request is one call that (l) measures, and the most that it may take at p95. 0 means no matter.
type request struct {
	name string
	most time.Duration
	do   func(context.Context) error
}

const (
	// Maximum duration of calls at p95.
	listTime, statusTime = 20 * time.Millisecond, 100 * time.Millisecond
	scrapeTime           = 200 * time.Millisecond
	// listPage is how many rows a list without a page size reads: 50, and one more to see if there is
	// another page.
	listPage = 51
	// listCalls is how often each list is read.
	listCalls = 200
)

// measureHistory is (l): what calls cost on a database with a long history.
func measureHistory(ctx context.Context, l *lab) (r *report, err error) {
	if err := l.buildMain(ctx, "history", l.longHistory()...); err != nil {
		return nil, err
	}
	d, err := l.connect(ctx, "history")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if l.plans {
		if err := d.explainSlow(ctx); err != nil {
			return nil, err
		}
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	log, err := l.serverLog()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	r = &report{header: []string{"call", "calls", "p50", "p95", "longest", "p95 at most"}}
	if err := d.measureCalls(ctx, r); err != nil {
		return nil, err
	}
	r.note("%s runs and as many fires, %s jobs, %s records in the queue.",
		grouped(int64(l.runs)), grouped(int64(l.jobs)), grouped(int64(l.records)))
	if l.plans {
		return r, noteSlow(r, log)
	}
	return r, nil
}

// measureCalls measures on one server: first as it is polled, then the lists.
func (d *database) measureCalls(ctx context.Context, r *report) (err error) {
	metrics, err := telemetry.Start(ctx, telemetry.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, metrics.Shutdown(context.WithoutCancel(ctx))) }()
	s, err := openHistory(ctx, d)
	if err != nil {
		return err
	}
	if err := s.Healthy(ctx); err != nil {
		return err
	}
	var note string
	_, note, err = rounds(d.lab, 1, func(int) (none struct{}, others float64, err error) {
		r.rows, r.notes = nil, nil
		c, err := d.lab.timed(func() error {
			if err := d.lab.poll(ctx, r, s, metrics.Handler()); err != nil {
				return err
			}
			return d.lab.list(ctx, r, s)
		})
		return none, c.others, err
	})
	r.note("%s", note)
	return err
}

// openHistory opens the workers with definitions for the queue.
func openHistory(ctx context.Context, d *database) (*service.Service, error) {
	// All of the history is kept: what is pruned costs each run some milliseconds, until it is gone.
	c := service.Config{HistoryKeep: 10 * 365 * 24 * time.Hour}
	service.Settings[lfk.Config](&c).Definitions = &lfk.Definitions{File: "bench", Keys: definition()}
	return openService(ctx, d, c)
}

// poll asks like clients that watch a server, for so long that figures age. It asks each second for
// the status of all workers and of one, and every five seconds for the metrics. It samples the
// backlogs each minute, as the status page does.
func (l *lab) poll(
	ctx context.Context, r *report, s *service.Service, metrics http.Handler,
) error {
	status := func(worker string) func(context.Context) error {
		return func(ctx context.Context) error { return second(s.Status(ctx, worker)) }
	}
	read := func(ctx context.Context) error { return scrape(ctx, metrics) }
	// every is how many half seconds lie between two calls.
	calls := []struct {
		request
		every int
	}{
		{request{"GetStatus", statusTime, status("")}, 2},
		{request{"GetStatus of " + lfk.Name, statusTime, status(lfk.Name)}, 2},
		{request{"/metrics", scrapeTime, read}, 10},
		{request{"a sample of the backlogs", 0, s.SampleBacklogs}, 120},
	}
	took := make([][]time.Duration, len(calls))
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for turn, end := 0, time.Now().Add(l.watch); time.Now().Before(end) || turn < 10; turn++ {
		for i, c := range calls {
			if turn%c.every != i%c.every {
				continue
			}
			start := time.Now()
			if err := c.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			took[i] = append(took[i], time.Since(start))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	for i, c := range calls {
		l.measured(r, c.request, took[i])
	}
	return nil
}

// measured has a row for a call, with the target if there is one.
func (l *lab) measured(r *report, c request, took []time.Duration) {
	p95, most := percentile(took, 95), "-"
	switch {
	case c.most > 0 && p95 <= c.most:
		most = milliseconds(c.most) + ", met"
	case c.most > 0:
		most = milliseconds(c.most) + ", missed"
	}
	l.say("  %s: %s", c.name, milliseconds(p95))
	r.row(c.name, grouped(int64(len(took))), milliseconds(percentile(took, 50)),
		milliseconds(p95), milliseconds(slices.Max(took)), most)
}

// times is how long each of n calls takes.
func (c request) times(ctx context.Context, n int) (took []time.Duration, err error) {
	for range n {
		each, err := elapsed(func() error { return c.do(ctx) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		took = append(took, each)
	}
	return took, nil
}

// scrape reads the metrics once.
func scrape(ctx context.Context, metrics http.Handler) error {
	answer := httptest.NewRecorder()
	metrics.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(err, fmt.Errorf("answer %d: %s", answer.Code, text))
	}
	return nil
}

func second[T any](_ T, err error) error { return err }

// list reads each list as its RPC does.
func (l *lab) list(ctx context.Context, r *report, s *service.Service) error {
	all, err := l.lists(ctx, s)
	if err != nil {
		return err
	}
	for _, c := range all {
		took, err := c.times(ctx, min(listCalls, max(l.runs/100, 1)))
		if err != nil {
			return err
		}
		l.measured(r, c, took)
	}
	return nil
}

// lists are the calls of lists, by name.
func (o options) lists(ctx context.Context, s *service.Service) ([]request, error) {
	newest, err := s.Runs(ctx, run.Filter{Limit: 1})
	if err != nil || len(newest) == 0 {
		return nil, errors.Join(err, errors.New("there is no run"))
	}
	middle := newest[0].StartedAt.Add(-time.Duration(o.runs/2) * time.Minute)
	all := slices.Concat(runLists(s, middle), fireLists(s, middle), o.jobLists(s))
	slices.SortFunc(all, func(a, b request) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func runLists(s *service.Service, middle time.Time) (all []request) {
	const none, few = "adjourned_group_deletion", "placeholder_user_cleanup"
	deep := fmt.Sprintf("%012x", middle.UnixMilli())
	deep = deep[:8] + "-" + deep[8:] + "-7000-8000-000000000000"
	for name, f := range map[string]run.Filter{
		"":                                       {},
		" of a worker":                           {Worker: none},
		", failed":                               {State: "failed"},
		", cancelled: old ones alone":            {State: "cancelled"},
		" of a worker, failed: one, long ago":    {Worker: few, State: "failed"},
		" of a worker, cancelled: none":          {Worker: none, State: "cancelled"},
		", half-way back":                        {After: deep},
		" of a worker, succeeded, half-way back": {Worker: lfk.Name, State: "succeeded", After: deep},
	} {
		f.Limit = listPage
		do := func(ctx context.Context) error { return second(s.Runs(ctx, f)) }
		all = append(all, request{"ListRuns" + name, listTime, do})
	}
	return all
}

func fireLists(s *service.Service, middle time.Time) (all []request) {
	const none = "adjourned_group_deletion"
	for name, f := range map[string]schedule.Filter{
		"":                           {},
		" of a worker":               {Worker: none},
		", missed: old ones alone":   {Outcome: "missed"},
		" of a worker, missed: none": {Worker: none, Outcome: "missed"},
		", half-way back":            {After: middle, AfterWorker: lfk.Name},
	} {
		f.Limit = listPage
		do := func(ctx context.Context) error { return second(s.Fires(ctx, f)) }
		all = append(all, request{"ListFires" + name, listTime, do})
	}
	return all
}

func (o options) jobLists(s *service.Service) (all []request) {
	const few = "continue_inactive_token_deletion"
	half := int64(o.jobs / 2)
	for name, f := range map[string]job.Filter{
		"":                                     {},
		" of a kind":                           {Kind: "delete_user"},
		" of a kind, few":                      {Kind: few},
		" of a kind, old ones alone":           {Kind: "destroy_group"},
		", scheduled":                          {State: "scheduled"},
		", completed: old ones alone":          {State: "completed"},
		", running":                            {State: "running"},
		", pending: none":                      {State: "pending"},
		" of a kind, completed":                {Kind: "destroy_group", State: "completed"},
		" of a kind, scheduled: none":          {Kind: "delete_user", State: "scheduled"},
		" of a kind, discarded: few":           {Kind: few, State: "discarded"},
		", half-way back":                      {After: half},
		", scheduled, behind all of them":      {State: "scheduled", After: half},
		" of a kind, completed, half-way back": {Kind: "delete_user", State: "completed", After: half},
	} {
		f.Limit = listPage
		do := func(ctx context.Context) error { return second(s.Jobs(ctx, f)) }
		all = append(all, request{"ListJobs" + name, listTime, do})
	}
	return all
}
