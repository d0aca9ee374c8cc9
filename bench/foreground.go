package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The application of (d): clients that each begin a transaction every so often, on tables of their own.
const (
	clients  = 4
	interval = 10 * time.Millisecond
	accounts = 100_000
)

func applicationTables() []string {
	return []string{
		`CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, filler char(84) NOT NULL)`,
		`CREATE TABLE history (account_id bigint NOT NULL, delta bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())`,
		fmt.Sprintf(`INSERT INTO accounts SELECT i, 0, '' FROM generate_series(1, %d) i`, accounts),
	}
}

// transact is pgbench's simple update.
func transact(ctx context.Context, conn *pgx.Conn) error {
	account, delta := rand.Int64N(accounts)+1, rand.Int64N(10_000)-5000
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE id = $1`, account, delta); err != nil {
			return err
		}
		var balance int64
		if err := tx.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = $1`, account).Scan(&balance); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO history (account_id, delta) VALUES ($1, $2)`, account, delta)
		return err
	})
}

// application holds the clients' connections.
type application []*pgx.Conn

func (d *database) application(ctx context.Context) (application, error) {
	var a application
	for range clients {
		conn, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return nil, err
		}
		d.closers = append(d.closers, func() error { return conn.Close(context.WithoutCancel(ctx)) })
		a = append(a, conn)
	}
	return a, nil
}

// besides runs the application as long as work takes, and returns how long each of its transactions took.
func (a application) besides(ctx context.Context, do work) ([]time.Duration, error) {
	var wait sync.WaitGroup
	done := make(chan struct{})
	took, errs := make([][]time.Duration, len(a)), make([]error, len(a))
	for i, conn := range a {
		wait.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for errs[i] == nil {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				start := time.Now()
				errs[i] = transact(ctx, conn)
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	err := do(ctx)
	close(done)
	wait.Wait()
	var all []time.Duration
	for _, some := range took {
		all = append(all, some...)
	}
	return all, errors.Join(errors.Join(errs...), err)
}

// idle is the time before the clean-up begins.
func idle(ctx context.Context) error {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// compareForeground is (d): what an application notices while children are removed.
func compareForeground(ctx context.Context, l *lab) (*report, error) {
	y := layouts()[0]
	statements := append(l.family("", "", y.order), l.family("cascade_", "REFERENCES cascade_parents ON DELETE CASCADE", y.order)...)
	statements = append(append(statements, trackParents), applicationTables()...)
	if err := l.build(ctx, "foreground", statements...); err != nil {
		return nil, err
	}
	watched := sides()[:3]
	measured, note, err := watch(l, watched, func(s side) string { return s.name },
		func(s side) (beside, float64, error) { return l.disturb(ctx, s) })
	if err != nil {
		return nil, err
	}
	r := l.disturbance(watched, measured)
	r.note("%d clients, a transaction of each every %v: update an account, read it, note it.", clients, interval)
	r.note("%s", note)
	return r, nil
}

// beside are the application's times before a clean-up and during it.
type beside struct{ before, during []time.Duration }

// watch has the application beside each of several clean-ups, in turn in each round.
func watch[T any](
	l *lab, all []T, name func(T) string, disturb func(T) (beside, float64, error),
) ([][]beside, string, error) {
	return rounds(l, l.repeat, func(int) ([]beside, float64, error) {
		measured, others := make([]beside, len(all)), 0.0
		for i, each := range all {
			b, other, err := disturb(each)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", name(each), err)
			}
			l.say("  %s: p99 %s", name(each), milliseconds(percentile(b.during, 99)))
			measured[i], others = b, max(others, other)
		}
		return measured, others, nil
	})
}

// disturbedBy runs the application before some work and during it.
func (l *lab) disturbedBy(ctx context.Context, a application, do work) (b beside, others float64, err error) {
	took, err := l.timed(func() (err error) {
		if b.before, err = a.besides(ctx, idle); err == nil {
			b.during, err = a.besides(ctx, do)
		}
		return err
	})
	return b, took.others, err
}

// disturb runs the application before a clean-up and during it.
func (l *lab) disturb(ctx context.Context, s side) (b beside, others float64, err error) {
	d, err := l.fresh(ctx, "foreground")
	if err != nil {
		return b, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	clean, err := s.ready(ctx, d)
	if err != nil {
		return b, 0, err
	}
	if !s.cascade {
		if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM parents WHERE id <= %d`, l.parents)); err != nil {
			return b, 0, err
		}
	}
	if err := d.settle(ctx); err != nil {
		return b, 0, err
	}
	a, err := d.application(ctx)
	if err != nil {
		return b, 0, err
	}
	b, others, err = l.disturbedBy(ctx, a, clean)
	return b, others, errors.Join(err, d.verify(ctx, s))
}

func (l *lab) disturbance(watched []side, measured [][]beside) *report {
	r := &report{header: []string{"while", "transactions", "p50", "p99", "× p99 before"}}
	for i, s := range watched {
		var before, during []time.Duration
		for _, m := range measured {
			before, during = append(before, m[i].before...), append(during, m[i].during...)
		}
		worse := percentile(during, 99).Seconds() / percentile(before, 99).Seconds()
		r.row("before: "+s.name, grouped(int64(len(before))), milliseconds(percentile(before, 50)), milliseconds(percentile(before, 99)), "")
		r.row(s.name, grouped(int64(len(during))), milliseconds(percentile(during, 50)), milliseconds(percentile(during, 99)), times(worse))
		if i == 0 {
			l.target(r, "the application's p99 during caretaker's run", "below 1.10 × that before", times(worse), worse < 1.1)
		}
	}
	return r
}
