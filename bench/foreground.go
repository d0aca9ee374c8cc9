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

// The application of (d): clients that each begin a transaction every pace, on tables of their own.
const (
	clients  = 4
	pace     = 10 * time.Millisecond
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

// beside runs the application as long as work takes, and returns how long each of its transactions took.
func (a application) beside(ctx context.Context, do work) ([]time.Duration, error) {
	var wait sync.WaitGroup
	done := make(chan struct{})
	took, errs := make([][]time.Duration, len(a)), make([]error, len(a))
	for i, conn := range a {
		wait.Go(func() {
			tick := time.NewTicker(pace)
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
	before, during := make([][]time.Duration, len(watched)), make([][]time.Duration, len(watched))
	for round := range l.repeat {
		for i, s := range watched {
			quiet, busy, err := l.disturb(ctx, s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			l.say("  round %d, %s: p99 %s", round+1, s.name, milliseconds(percentile(busy, 99)))
			before[i], during[i] = append(before[i], quiet...), append(during[i], busy...)
		}
	}
	return l.disturbance(watched, before, during), nil
}

// disturb returns the application's times before a clean-up and during it.
func (l *lab) disturb(ctx context.Context, s side) (before, during []time.Duration, err error) {
	d, err := l.fresh(ctx, "foreground")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	clean, err := s.ready(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	if !s.cascade {
		if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM parents WHERE id <= %d`, l.parents)); err != nil {
			return nil, nil, err
		}
	}
	if err := d.settle(ctx); err != nil {
		return nil, nil, err
	}
	a, err := d.application(ctx)
	if err != nil {
		return nil, nil, err
	}
	if before, err = a.beside(ctx, idle); err == nil {
		during, err = a.beside(ctx, clean)
	}
	return before, during, errors.Join(err, d.verify(ctx, s))
}

func (l *lab) disturbance(watched []side, before, during [][]time.Duration) *report {
	r := &report{header: []string{"while", "transactions", "p50", "p99", "× p99 before"}}
	for i, s := range watched {
		for _, t := range []struct {
			name string
			took []time.Duration
		}{{"before: " + s.name, before[i]}, {s.name, during[i]}} {
			p99 := percentile(t.took, 99)
			r.row(t.name, grouped(int64(len(t.took))), milliseconds(percentile(t.took, 50)), milliseconds(p99),
				times(p99.Seconds()/percentile(before[i], 99).Seconds()))
		}
	}
	worse := percentile(during[0], 99).Seconds() / percentile(before[0], 99).Seconds()
	l.target(r, "the application's p99 during caretaker's run", "below 1.10 × that before", times(worse), worse < 1.1)
	r.note("%d clients, a transaction of each every %v: update an account, read it, note it.", clients, pace)
	return r
}
