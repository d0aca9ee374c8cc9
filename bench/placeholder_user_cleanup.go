package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"time"
)

// claimed makes sure that every row has its attempt and its job.
func claimed(ctx context.Context, d *database) error {
	var attempts, jobs int
	if err := d.one(ctx, &attempts, `SELECT count(*) FROM import_placeholder_user_details WHERE last_deletion_attempt_at > now() - interval '1 day'`); err != nil {
		return err
	}
	if err := d.one(ctx, &jobs, `SELECT count(DISTINCT args) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' AND state = 'scheduled'`); err != nil {
		return err
	}
	if want := d.lab.placeholders; attempts != want || jobs < want-1 || jobs > want {
		return fmt.Errorf("%d rows are claimed and %d users have a job, where there should be %d", attempts, jobs, want)
	}
	return nil
}

// compareClaims is (h), twice. The first server does not wait for the disk, as in the other
// scenarios. The second does, like every server that must keep its data. The way row by row loses
// above all by that wait.
func compareClaims(ctx context.Context, l *lab) (r *report, err error) {
	r = &report{header: append([]string{"commits"}, standingsHeader("rows")...)}
	var notes []string
	both := []bool{false, true}
	if l.durable {
		both = both[1:]
	}
	for _, durable := range both {
		note, err := l.compareClaimsOn(ctx, r, durable)
		if err != nil {
			return nil, err
		}
		notes = append(notes, note)
	}
	r.notes = append(r.notes, notes...)
	return r, l.claimStatements(ctx, r)
}

// compareClaimsOn is one of the two, on a server of its own where ours is another one.
func (l *lab) compareClaimsOn(ctx context.Context, r *report, durable bool) (note string, err error) {
	name, on := "do not wait for the disk", l
	if durable {
		name = "wait for the disk"
	}
	if durable != l.durable {
		o := l.options
		o.durable = durable
		if on, err = openLab(ctx, o, l.progress); err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, on.close(ctx)) }()
	}
	if err := on.buildMain(ctx, "placeholders", eligible(l.placeholders)...); err != nil {
		return "", err
	}
	ways := []way{{"caretaker", readyClaims}, {"one statement for all", readyClaimAll}, {"row by row", readyRowByRow}}
	measured, note, err := on.race(ctx, "placeholders", l.half(), claimed, ways...)
	if err != nil {
		return "", err
	}
	part := &report{}
	part.standings(l.placeholders, measured, ways...)
	for _, row := range part.rows {
		r.row(append([]string{name}, row...)...)
	}
	ratio := faster(measured, 2)
	l.target(r, "caretaker's speed beside row by row, where commits "+name+",", "at least 20 ×", times(ratio), ratio >= 20)
	took, _ := results(measured)
	r.note("There one statement for all, PostgreSQL's own limit, is %s as fast as row by row.", times(median(ratios(took[2], took[1]))))
	return "Where commits " + name + ": " + note, nil
}

// claimStatements notes how long the statements of a run took and how much memory it needed, in a run of their own.
func (l *lab) claimStatements(ctx context.Context, r *report) error {
	sized := *l
	sized.placeholders = max(l.placeholders/10, 1)
	_, few, err := sized.claimLogged(ctx)
	if err != nil {
		return err
	}
	var many uint64
	err = l.statementTarget(r, func() (took []time.Duration, err error) {
		took, many, err = l.claimLogged(ctx)
		return took, err
	})
	r.note("Memory in use by this process, at most: %.1f MB for a tenth of the rows, %.1f MB for all.", float64(few)/1e6, float64(many)/1e6)
	return err
}

func (l *lab) claimLogged(ctx context.Context) (took []time.Duration, heap uint64, err error) {
	d, err := l.fresh(ctx, "placeholders")
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM import_placeholder_user_details WHERE id > %d`, l.placeholders)); err != nil {
		return nil, 0, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, 0, err
	}
	took, err = d.statementsOf(ctx, `eligible_for_deletion|river_job`, func() error {
		run, err := readyClaims(ctx, d)
		if err != nil {
			return err
		}
		heap, err = peak(func() error { return run(ctx) })
		return err
	})
	return took, heap, errors.Join(err, claimed(ctx, d))
}

// peak is how much of the heap was live at most, by the collections of garbage, while some work was done.
func peak(do func() error) (most uint64, err error) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	done := make(chan error, 1)
	go func() { done <- do() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return most, err
		case <-tick.C:
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
		}
	}
}
