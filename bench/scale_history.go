package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// Calls to a server with a history, and how often in a round.
const historyCalls = 20

// remembered is what calls took beside so many runs, fires and jobs: p95, in milliseconds.
type remembered struct{ run, status, list float64 }

// measureHistoryBySize is what calls cost by how many runs, fires and jobs are kept.
func measureHistoryBySize(ctx context.Context, l *lab) (*report, error) {
	sizes := l.sizes(1_000_000, 1000, 10_000, 100_000, 1_000_000)
	name := func(size int) string { return fmt.Sprintf("history_%d", size) }
	for _, size := range sizes {
		if err := l.buildMain(ctx, name(size), l.kept(size).longHistory()...); err != nil {
			return nil, err
		}
	}
	measured, note, err := rounds(l, l.repeat, func(int) (all []remembered, others float64, err error) {
		for _, size := range sizes {
			c, err := l.timed(func() error {
				m, err := l.remember(ctx, name(size), l.kept(size))
				all = append(all, m)
				return err
			})
			if err != nil {
				return nil, 0, fmt.Errorf("history of %d: %w", size, err)
			}
			others = max(others, c.others)
		}
		return all, others, nil
	})
	if err != nil {
		return nil, err
	}
	r := &report{header: []string{"runs, fires and jobs, each", "a run of one record", "GetStatus", "the slowest list"}}
	lines := []line{{name: "run"}, {name: "GetStatus"}, {name: "slowest list"}}
	for i, size := range sizes {
		row := []string{grouped(int64(size))}
		for j := range lines {
			var took []float64
			for _, m := range measured {
				took = append(took, []float64{m[i].run, m[i].status, m[i].list}[j])
			}
			lines[j].points = append(lines[j].points, over(size, took))
			row = append(row, fmt.Sprintf("%.1f ms", median(took)))
		}
		r.row(row...)
	}
	r.note("p95 of %d calls in each round. GetStatus asks for all workers of a server that was just started. %s", historyCalls, note)
	return r, l.draw(r, "history", chart{
		"What a long history costs", "runs, fires and jobs that are kept, each",
		[]panel{{"time of a call at p95, ms", lines}},
	})
}

// kept are the options with a history of this size and a short queue.
func (o options) kept(size int) options {
	o.runs, o.jobs, o.records = size, size, 100
	return o
}

// remember measures on a fresh copy.
func (l *lab) remember(ctx context.Context, template string, o options) (m remembered, err error) {
	d, err := l.fresh(ctx, template)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return m, err
	}
	var status []time.Duration
	for range historyCalls {
		s, err := openHistory(ctx, d)
		if err != nil {
			return m, err
		}
		took, err := elapsed(func() error { return second(s.Status(ctx, "")) })
		if err != nil {
			return m, err
		}
		status = append(status, took)
	}
	s, err := openHistory(ctx, d)
	if err != nil {
		return m, err
	}
	runs, err := d.runOfOne(ctx, s)
	if err != nil {
		return m, err
	}
	lists, err := o.lists(ctx, s)
	if err != nil {
		return m, err
	}
	for _, c := range lists {
		took, err := c.times(ctx, historyCalls)
		if err != nil {
			return m, err
		}
		m.list = max(m.list, inMilliseconds(percentile(took, 95)))
	}
	m.run, m.status = inMilliseconds(percentile(runs, 95)), inMilliseconds(percentile(status, 95))
	l.say("  %s: a run %.1f ms, status %.1f ms, the slowest list %.1f ms", template, m.run, m.status, m.list)
	return m, nil
}

// runOfOne times runs that find one record each. The first ones, which take what the queue has, do
// not count.
func (d *database) runOfOne(ctx context.Context, s *service.Service) (took []time.Duration, err error) {
	for i := range historyCalls + 1 {
		err := d.exec(ctx, fmt.Sprintf(`INSERT INTO loose_foreign_keys_deleted_records
			(fully_qualified_table_name, primary_key_value) VALUES ('public.parents', %d)`, 1000+i))
		if err != nil {
			return nil, err
		}
		var r run.Run
		each, err := elapsed(func() (err error) {
			r, err = s.RunBatch(ctx, run.Request{Worker: lfk.Name, Database: "main"})
			return err
		})
		if err == nil && r.Counts["processed_records"] == 0 {
			err = errors.New("a run found no record: " + r.Error + r.Reason)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, each)
	}
	return slices.Delete(took, 0, 1), nil
}

func elapsed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}
