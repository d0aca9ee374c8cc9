package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// way is one side of a comparison.
type way struct {
	name string
	// ready sets up on a copy of the database what a process that is running for long has at hand.
	ready func(context.Context, *database) (work, error)
}

// race measures the ways in turn, each on a fresh copy of the database, which the check then
// checks. The costs are by round, in the order of the ways.
func (l *lab) race(ctx context.Context, template string, wanted int, check func(context.Context, *database) error, ways ...way) ([][]cost, string, error) {
	return rounds(l, wanted, func(round int) ([]cost, float64, error) {
		costs, others := make([]cost, len(ways)), 0.0
		for i := range ways {
			if round%2 == 1 {
				i = len(ways) - 1 - i
			}
			c, err := l.lap(ctx, template, check, ways[i])
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", ways[i].name, err)
			}
			l.say("  %s: %s", ways[i].name, seconds(c.time))
			costs[i], others = c, max(others, c.others)
		}
		return costs, others, nil
	})
}

// lap measures one way once.
func (l *lab) lap(ctx context.Context, template string, check func(context.Context, *database) error, w way) (c cost, err error) {
	d, err := l.fresh(ctx, template)
	if err != nil {
		return cost{}, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	run, err := w.ready(ctx, d)
	if err != nil {
		return cost{}, err
	}
	if err := d.settle(ctx); err != nil {
		return cost{}, err
	}
	if c, err = l.timed(func() error { return run(ctx) }); err != nil {
		return cost{}, err
	}
	return c, check(ctx, d)
}

// half is how often slow ways are measured: an odd number, which has a median.
func (l *lab) half() int { return l.repeat/2 | 1 }

// results are the times and the server's processor times of a race, by way.
func results(measured [][]cost) (took [][]time.Duration, server [][]float64) {
	took, server = make([][]time.Duration, len(measured[0])), make([][]float64, len(measured[0]))
	for _, costs := range measured {
		for i, c := range costs {
			took[i], server[i] = append(took[i], c.time), append(server[i], c.server)
		}
	}
	return took, server
}

// standingsHeader is the header of a report of standings.
func standingsHeader(things string) []string {
	return []string{"way", "median", "range", "server CPU", things + "/s", "time × caretaker", "server CPU × caretaker"}
}

// standings has a row for each way of a race over n things. Ratios are medians over the rounds.
func (r *report) standings(n int, measured [][]cost, ways ...way) {
	took, server := results(measured)
	for i, w := range ways {
		r.row(w.name, seconds(median(took[i])), spread(took[i]), fmt.Sprintf("%.2f s", median(server[i])),
			perSecond(int64(n), median(took[i])), times(median(ratios(took[i], took[0]))), times(median(quotients(server[i], server[0]))))
	}
}

// faster is how many times the first way of a race is as fast as another one: the median of the rounds.
func faster(measured [][]cost, than int) float64 {
	took, _ := results(measured)
	return median(ratios(took[than], took[0]))
}

// cheaper is the same by processor time of the server.
func cheaper(measured [][]cost, than int) float64 {
	_, server := results(measured)
	return median(quotients(server[than], server[0]))
}

// statementTarget notes how long the statements of a run took, which is measured until it is not disturbed.
func (l *lab) statementTarget(r *report, measure func() ([]time.Duration, error)) error {
	measured, note, err := rounds(l, 1, func(int) (took []time.Duration, others float64, err error) {
		c, err := l.timed(func() (err error) {
			took, err = measure()
			return err
		})
		return took, c.others, err
	})
	if err != nil {
		return err
	}
	took := measured[0]
	p99 := percentile(took, 99)
	l.target(r, "p99 of caretaker's statements", "at most 250 ms", milliseconds(p99), p99 <= 250*time.Millisecond)
	r.note("%s statements by the server's log, in a run of its own: p50 %s, the longest %s. %s",
		grouped(int64(len(took))), milliseconds(percentile(took, 50)), milliseconds(slices.Max(took)), note)
	return nil
}

// openService opens the workers on a database, as the server runs them, with a queue that works no jobs.
func openService(ctx context.Context, d *database, c service.Config) (*service.Service, error) {
	main, err := repo.Open(ctx, "main", d.url)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, func() error { main.Close(); return nil })
	queue, err := scheduler.NewQueue(main, scheduler.QueueConfig{})
	if err != nil {
		return nil, err
	}
	c.Databases, c.Queue, c.Logger = []*repo.Database{main}, queue, slog.New(slog.DiscardHandler)
	config.Defaults(&c)
	s, err := service.New(c) //nolint:contextcheck // counters begin with the service, not with a call
	if err == nil {
		d.closers = append(d.closers, func() error { return s.Shutdown(context.WithoutCancel(ctx)) })
	}
	return s, err
}

// runWorker is one run, which must succeed with these counts.
func runWorker(ctx context.Context, s *service.Service, worker string, counts map[string]int64) error {
	run, err := s.RunBatch(ctx, run.Request{Worker: worker})
	if err != nil {
		return err
	}
	if run.State != control.RunSucceeded || run.OverLimit {
		return fmt.Errorf("the run ended %s %s%s, counts %v", run.State, run.Reason, run.Error, run.Counts)
	}
	for key, want := range counts {
		if run.Counts[key] != want {
			return fmt.Errorf("%s is %d, not %d: the run's counts are %v", key, run.Counts[key], want, run.Counts)
		}
	}
	return nil
}
