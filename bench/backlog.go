package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// smallBacklog is the number of records that a run of (b) works off, and all there are in the short queue.
const smallBacklog = 10_000

// queue is one length of the queue.
type queue struct {
	template      string
	records       int
	times         []time.Duration
	removed, rows []float64
}

// fill puts records into the queue whose parents were deleted one after the other. The oldest ones, twice as many as a
// run works off, have children: the limit on rows ends the run at the same number of rows, whatever the queue's length.
func (l *lab) fillQueue(q *queue, work int) []string {
	return []string{
		`CREATE TABLE children (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent_id bigint NOT NULL, title text NOT NULL)`,
		fmt.Sprintf(`INSERT INTO children (parent_id, title) SELECT p, 'child ' || n || ' of ' || p
			FROM generate_series(1, %d) n, generate_series(1, %d) p ORDER BY n, hashint8(p)`, l.children, 2*work),
		`CREATE INDEX ON children (parent_id)`,
		fmt.Sprintf(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, created_at, consume_after)
			SELECT 'public.parents', i, now() - (%[1]d - i) * interval '1 ms', now() - (%[1]d - i) * interval '1 ms'
			FROM generate_series(1, %[1]d) i`, q.records),
	}
}

// compareBacklogs is (b): the same work at the head of a short queue and of a long one.
func compareBacklogs(ctx context.Context, l *lab) (*report, error) {
	work := min(smallBacklog, l.backlog/2)
	queues := []*queue{{template: "short_queue", records: work}, {template: "long_queue", records: l.backlog}}
	for _, q := range queues {
		if err := l.build(ctx, q.template, l.fillQueue(q, work)...); err != nil {
			return nil, err
		}
	}
	for round := range 2 * l.repeat { // a run is short, so there are more of them
		for i := range queues {
			q := queues[(i+round)%2]
			if err := l.workOff(ctx, q, work); err != nil {
				return nil, fmt.Errorf("%s records: %w", grouped(int64(q.records)), err)
			}
			l.say("  round %d, %s records: %s", round+1, grouped(int64(q.records)), seconds(q.times[round]))
		}
	}
	r := &report{header: []string{"records in the queue", "median", "range", "records/s", "rows/s"}}
	for _, q := range queues {
		r.row(grouped(int64(q.records)), seconds(median(q.times)), spread(q.times), grouped(int64(median(q.removed))), grouped(int64(median(q.rows))))
	}
	records, rows := median(quotients(queues[1].removed, queues[0].removed)), median(quotients(queues[1].rows, queues[0].rows))
	l.target(r, "speed at the long queue", "at least 0.90 × that at the short one",
		fmt.Sprintf("%s in records, %s in rows", times(records), times(rows)), min(records, rows) >= 0.9)
	r.note("Each run ends after %s rows, %s records.", grouped(int64(work*l.children)), grouped(int64(work)))
	return r, nil
}

func (l *lab) workOff(ctx context.Context, q *queue, work int) (err error) {
	d, err := l.fresh(ctx, q.template)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	c, err := newCaretaker(ctx, d, definition(), int64(work*l.children))
	if err != nil {
		return err
	}
	if err := c.service.Healthy(ctx); err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	start := time.Now()
	run, err := c.clean(ctx)
	if err != nil {
		return err
	}
	took := time.Since(start)
	removed, rows := run.Counts["processed_records"], run.Counts["deleted_rows"]
	if rows != int64(work*l.children) || removed < int64(work)*9/10 {
		return fmt.Errorf("the run removed %d records and %d rows", removed, rows)
	}
	q.times = append(q.times, took)
	q.removed, q.rows = append(q.removed, float64(removed)/took.Seconds()), append(q.rows, float64(rows)/took.Seconds())
	return nil
}

func quotients(of, by []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / by[i]
	}
	return out
}
