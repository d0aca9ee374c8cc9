package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// smallBacklog is the number of records that a run of (b) drains, and all there are in the short
// queue.
const smallBacklog = 10_000

// queue is one length of the queue.
type queue struct {
	template string
	records  int
}

// fillQueue puts records into the queue whose parents were deleted one after the other. The oldest
// ones, twice as many as a run drains, have children. So the limit on rows ends the run at the same
// number of rows, whatever the queue's length.
func (l *lab) fillQueue(q queue, work int) []string {
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

// pace is the speed of one run.
type pace struct {
	time          time.Duration
	records, rows float64 // a second
}

// compareBacklogs is (b): the same work at the head of a short queue and of a long one.
func compareBacklogs(ctx context.Context, l *lab) (*report, error) {
	work := min(smallBacklog, l.backlog/2)
	queues := []queue{{"short_queue", work}, {"long_queue", l.backlog}}
	for _, q := range queues {
		if err := l.build(ctx, q.template, l.fillQueue(q, work)...); err != nil {
			return nil, err
		}
	}
	measured, note, err := rounds(l, 2*l.repeat, func(round int) ([]pace, float64, error) { // a run is short, so there are more
		paces, others := make([]pace, len(queues)), 0.0
		for i := range queues {
			i = (i + round) % 2
			p, other, err := l.workOff(ctx, queues[i], work)
			if err != nil {
				return nil, 0, fmt.Errorf("%s records: %w", grouped(int64(queues[i].records)), err)
			}
			l.say("  %s records: %s", grouped(int64(queues[i].records)), seconds(p.time))
			paces[i], others = p, max(others, other)
		}
		return paces, others, nil
	})
	if err != nil {
		return nil, err
	}
	r := l.paces(queues, measured)
	r.note("Each run ends after %s rows, %s records.", grouped(int64(work*l.children)), grouped(int64(work)))
	r.note("%s", note)
	return r, nil
}

func (l *lab) paces(queues []queue, measured [][]pace) *report {
	r := &report{header: []string{"records in the queue", "median", "range", "records/s", "rows/s"}}
	for i, q := range queues {
		var took []time.Duration
		var records, rows []float64
		for _, m := range measured {
			took, records, rows = append(took, m[i].time), append(records, m[i].records), append(rows, m[i].rows)
		}
		r.row(grouped(int64(q.records)), seconds(median(took)), spread(took), grouped(int64(median(records))), grouped(int64(median(rows))))
	}
	var records, rows []float64
	for _, m := range measured {
		records, rows = append(records, m[1].records/m[0].records), append(rows, m[1].rows/m[0].rows)
	}
	l.target(r, "speed at the long queue", "at least 0.90 × that at the short one",
		fmt.Sprintf("%s in records, %s in rows", times(median(records)), times(median(rows))), min(median(records), median(rows)) >= 0.9)
	return r
}

func (l *lab) workOff(ctx context.Context, q queue, work int) (p pace, others float64, err error) {
	d, err := l.fresh(ctx, q.template)
	if err != nil {
		return p, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	c, err := newCaretaker(ctx, d, definition(), int64(work*l.children))
	if err != nil {
		return p, 0, err
	}
	if err := c.service.Healthy(ctx); err != nil {
		return p, 0, err
	}
	if err := d.settle(ctx); err != nil {
		return p, 0, err
	}
	var run run.Run
	took, err := l.timed(func() (err error) {
		run, err = c.clean(ctx)
		return err
	})
	if err != nil {
		return p, 0, err
	}
	removed, rows := run.Counts["processed_records"], run.Counts["deleted_rows"]
	if rows != int64(work*l.children) || removed < int64(work)*9/10 {
		return p, 0, fmt.Errorf("the run removed %d records and %d rows", removed, rows)
	}
	return pace{took.time, float64(removed) / took.time.Seconds(), float64(rows) / took.time.Seconds()}, took.others, nil
}
