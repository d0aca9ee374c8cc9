package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// previous is what the last sample counted, of which the next one measures the difference.
type previous struct {
	statements, seconds      float64
	transactions, activeTime float64
	runs                     time.Time
}

// sample measures everything once.
func (e *estate) sample(ctx context.Context) error {
	at := time.Since(e.began)
	for _, s := range []*server{e.first, e.second} {
		if _, err := get(ctx, "http://"+s.web+"/"); err != nil {
			return fmt.Errorf("look at the status page of %s: %w", s.name, err)
		}
	}
	f, err := e.first.read(ctx)
	if err != nil {
		return err
	}
	e.sampleServer(f, at)
	sizes := map[series]float64{}
	for _, name := range databases {
		if err := e.sampleDatabase(ctx, name, sizes); err != nil {
			return fmt.Errorf("measure %s: %w", name, err)
		}
	}
	for s, value := range sizes {
		e.samples.add(s.name, s.floor, at, value)
	}
	return e.sampleActivity(ctx, at)
}

const megabyte = 1 << 20

// sampleServer takes what the first server shows of itself. Floors are what is too little to matter in an hour.
func (e *estate) sampleServer(f figures, at time.Duration) {
	add := func(name string, floor, value float64) { e.samples.add(name, floor, at, value) }
	add("server: resident memory, MB", 5, f["process_resident_memory_bytes"]/megabyte)
	add("server: live heap, MB", 2, f["heap"])
	add("server: goroutines", 5, f["go_goroutines"])
	add("server: open files", 3, f["process_open_fds"])
	add("backlog: rows", 500, f["maintenance_backlog_pending"])
	add("backlog: given up", 5, f["maintenance_backlog_dead"])
	statements, seconds := f["maintenance_statement_duration_seconds_count"], f["maintenance_statement_duration_seconds_sum"]
	if n := statements - e.previous.statements; n > 0 && e.previous.statements > 0 {
		add("time: statement, ms", 1, 1000*(seconds-e.previous.seconds)/n)
	}
	e.previous.statements, e.previous.seconds = statements, seconds
}

// series is a name with its floor.
type series struct {
	name  string
	floor float64
}

// sizesSQL measures the queue, whose partitions come and go, and caretaker's tables, with their indexes.
const sizesSQL = `
SELECT CASE WHEN c.relname LIKE 'loose\_foreign\_keys\_deleted\_records%' THEN 'queue of records' ELSE 'maintenance.' || c.relname END,
  count(*) FILTER (WHERE c.relkind = 'r'), sum(pg_total_relation_size(c.oid))::float8, coalesce(sum(s.n_dead_tup), 0)::float8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relkind IN ('r', 'p')
  AND (n.nspname = 'maintenance' OR c.relname LIKE 'loose\_foreign\_keys\_deleted\_records%')
GROUP BY 1`

// sampleDatabase adds the sizes of a database to those of the others. A partition may be dropped meanwhile: its size is null.
func (e *estate) sampleDatabase(ctx context.Context, name string, sizes map[series]float64) error {
	rows, err := e.conns[name].Query(ctx, sizesSQL) //nolint:rowserrcheck // ForEachRow does
	if err != nil {
		return err
	}
	var table string
	var partitions int
	var size, dead float64
	_, err = pgx.ForEachRow(rows, []any{&table, &partitions, &size, &dead}, func() error {
		sizes[series{"size: " + table + ", kB", 512}] += size / 1024
		sizes[series{"dead tuples: " + table, 500}] += dead
		if table == "queue of records" {
			sizes[series{"queue: partitions", 2}] += float64(partitions)
		}
		return nil
	})
	return err
}

const (
	// The time of the servers' statements is that of all: ours are few.
	activitySQL = `
SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'server%')::float8,
  sum(active_time)::float8, sum(xact_commit)::float8
FROM pg_stat_database`
	runsSQL = `
SELECT coalesce(max(finished_at), $1::timestamptz),
  1000 * avg(extract(epoch FROM finished_at - started_at))::float8
FROM maintenance.runs WHERE finished_at > $1::timestamptz AND state <> 'skipped'`
)

// sampleActivity measures connections, the database's time for a transaction, and how long runs took.
func (e *estate) sampleActivity(ctx context.Context, at time.Duration) error {
	var connections, active, transactions float64
	if err := e.conns["main"].QueryRow(ctx, activitySQL).Scan(&connections, &active, &transactions); err != nil {
		return err
	}
	e.samples.add("servers: connections", 2, at, connections)
	p := &e.previous
	if n := transactions - p.transactions; n > 0 && p.transactions > 0 {
		e.samples.add("time: transaction in the database, ms", 1, at, (active-p.activeTime)/n)
	}
	p.transactions, p.activeTime = transactions, active
	var average *float64
	if p.runs.IsZero() {
		p.runs = e.began
	}
	if err := e.conns["main"].QueryRow(ctx, runsSQL, p.runs).Scan(&p.runs, &average); err != nil {
		return err
	}
	if average != nil {
		e.samples.add("time: run, ms", 50, at, *average)
	}
	return nil
}
