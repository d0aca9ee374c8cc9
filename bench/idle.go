package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/scheduler"
)

// estate are the reference schemas, each a database, on which a server has nothing to do.
var estate = []string{"main", "ci", "sec"} //nolint:gochecknoglobals // a constant

// idleDefinitions configure the worker loose_foreign_keys_cleanup, so that all five are.
const idleDefinitions = "issues:\n  - table: users\n    column: author_id\n    on_delete: async_nullify\n"

// measureIdle is (k): what a server sends while there is nothing to do, and how soon it goes to work.
func measureIdle(ctx context.Context, l *lab) (r *report, err error) {
	if counts, err := l.countsStatements(ctx); err != nil || !counts {
		return &report{header: []string{"statement", "a second"}, notes: []string{"Not measured: the server has no pg_stat_statements."}}, err
	}
	stop, err := l.serveIdle(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	d, err := l.connect(ctx, "idle_main")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.conn.Close(context.WithoutCancel(ctx))) }()
	if err := letPass(ctx, min(l.idle/10, 30*time.Second)); err != nil {
		return nil, err
	}
	r = &report{header: []string{"statement", "database", "a second"}}
	if err := d.countIdle(ctx, r); err != nil {
		return nil, err
	}
	return r, d.measureStarts(ctx, r)
}

// serveIdle runs a server on databases of its own until stop is called, which removes them.
func (l *lab) serveIdle(ctx context.Context) (stop func() error, err error) {
	var drops, settings []string
	for _, name := range estate {
		if err := l.buildFrom(ctx, name, "idle_"+name); err != nil {
			return nil, err
		}
		drops = append(drops, `DROP DATABASE idle_`+name+` WITH (FORCE)`)
		settings = append(settings, fmt.Sprintf("  %s: {url: %q}", name, l.cluster.URL("idle_"+name)))
	}
	dir, err := os.MkdirTemp("", "caretaker-bench")
	if err != nil {
		return nil, err
	}
	definitions, config := filepath.Join(dir, "definitions.yml"), filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nmetrics_listen: \"\"\ndatabases:\n%s\n"+
		"workers: {loose_foreign_keys_cleanup: {definitions: %q}}\n", strings.Join(settings, "\n"), definitions)
	err = errors.Join(os.WriteFile(definitions, []byte(idleDefinitions), 0o600), os.WriteFile(config, []byte(text), 0o600))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	serving, cancel := context.WithCancel(ctx)
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(serving, []string{"serve", "--config", config}, cli.Streams{
			Out: io.Discard, Err: l.progress, Env: os.Environ(),
		})
	}()
	return func() error {
		cancel()
		err := os.RemoveAll(dir)
		if code := <-ended; code != 0 {
			err = errors.Join(err, fmt.Errorf("the server ended with code %d", code))
		}
		return errors.Join(err, l.administer(context.WithoutCancel(ctx), drops...))
	}, nil
}

// letPass lets time go by.
func letPass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// topStatements is how many statements are shown.
const topStatements = 12

const (
	idleStatementsSQL = `
SELECT left(regexp_replace(s.query, '\s+', ' ', 'g'), 70), b.datname, s.calls, sum(s.calls) OVER ()::bigint
FROM pg_stat_statements s JOIN pg_database b ON b.oid = s.dbid
WHERE b.datname LIKE 'idle\_%' AND s.query NOT LIKE '%pg_stat_%' ORDER BY s.calls DESC`
	idleTransactionsSQL = `
SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database WHERE datname LIKE 'idle\_%'`
)

// countIdle counts what the server sends while nothing is due but its fires.
func (d *database) countIdle(ctx context.Context, r *report) error {
	if err := d.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`, `SELECT pg_stat_statements_reset()`); err != nil {
		return err
	}
	var before, after int64
	began := time.Now()
	if err := d.one(ctx, &before, idleTransactionsSQL); err != nil {
		return err
	}
	if err := letPass(ctx, d.lab.idle); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	if err := d.one(ctx, &after, idleTransactionsSQL); err != nil {
		return err
	}
	rows, err := d.conn.Query(ctx, idleStatementsSQL)
	if err != nil {
		return err
	}
	type statement struct {
		Query, Database string
		Calls, Total    int64
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil {
		return err
	}
	var total int64
	for n, s := range all {
		if total = s.Total; n < topStatements {
			r.row("`"+s.Query+"`", strings.TrimPrefix(s.Database, "idle_"), fmt.Sprintf("%.2f", float64(s.Calls)/took))
		}
	}
	rate := float64(total) / took
	d.lab.target(r, "statements a second", "at most 3", fmt.Sprintf("%.2f (%s)", rate, times(rate/3)), rate <= 3)
	r.note("%.2f transactions a second, with the empty ones that ask whether a connection is alive. %.0f s, five workers, "+
		"three databases, schedules and jobs on; BEGIN and COMMIT are statements.", float64(after-before)/took, took)
	return nil
}

// lateSQL is how late jobs and fires began, by the clock of main.
const (
	lateJobsSQL = `
SELECT extract(epoch FROM attempted_at - scheduled_at)::float8 FROM maintenance.river_job
WHERE attempted_at IS NOT NULL AND (scheduled_at > created_at) = $1`
	lateFiresSQL = `
SELECT extract(epoch FROM claimed_at - fire_time)::float8 FROM maintenance.fires
WHERE claimed_at IS NOT NULL AND fire_time > (SELECT min(fire_time) FROM maintenance.fires)`
)

// measureStarts measures how soon jobs start that another server queues, and how late jobs and fires are.
func (d *database) measureStarts(ctx context.Context, r *report) (err error) {
	main, err := repo.Open(ctx, "main", d.url)
	if err != nil {
		return err
	}
	defer main.Close()
	other, err := scheduler.NewQueue(main, scheduler.QueueConfig{})
	if err != nil {
		return err
	}
	jobs := 40
	if d.lab.quick {
		jobs = 4
	}
	for n := range jobs {
		job := jobqueue.Job{Args: jobqueue.DeleteUser{UserID: int64(1_000_000 + n), Reason: "bench"}}
		if n%2 == 1 {
			// River looks 5 s ahead every 5 s: a job for a time that is nearer may be as late as that.
			job.ScheduledAt = time.Now().Add(6*time.Second + time.Duration(n)*77*time.Millisecond)
		}
		err := pgx.BeginFunc(ctx, d.conn, func(tx pgx.Tx) error {
			_, err := other.InsertJobs(ctx, tx, []jobqueue.Job{job})
			return err
		})
		if err != nil {
			return err
		}
		if err := letPass(ctx, 450*time.Millisecond); err != nil {
			return err
		}
	}
	for left := 1; left > 0; {
		if err := letPass(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if err := d.one(ctx, &left, `SELECT count(*) FROM maintenance.river_job WHERE attempted_at IS NULL`); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		what, sql string
		args      []any
		limit     float64
	}{
		{"start of a job that another server has queued", lateJobsSQL, []any{false}, 2},
		{"start of a job after its time", lateJobsSQL, []any{true}, 1},
		{"start of a fire after its time", lateFiresSQL, nil, 1},
	} {
		rows, err := d.conn.Query(ctx, m.sql, m.args...)
		if err != nil {
			return err
		}
		late, err := pgx.CollectRows(rows, pgx.RowTo[float64])
		if err != nil {
			return err
		}
		p95 := percentile(late, 95)
		d.lab.target(r, m.what, fmt.Sprintf("within %.0f s at p95", m.limit),
			fmt.Sprintf("p50 %.3f s, p95 %.3f s of %d (%s)", median(late), p95, len(late), times(p95/m.limit)), p95 <= m.limit)
	}
	return nil
}
