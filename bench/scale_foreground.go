package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// measureForegroundByReplicas is what the application of (d) notices in main while replicas drain four
// databases of the same PostgreSQL.
func measureForegroundByReplicas(ctx context.Context, l *lab) (*report, error) {
	stages, err := l.fourDatabases(ctx, "foreground", 10*l.rows, applicationTables()...)
	if err != nil {
		return nil, err
	}
	measured, note, err := watch(l, stages, func(s stage) string { return fmt.Sprintf("replicas %d", s.size) },
		func(s stage) (beside, float64, error) { return l.disturbByDrain(ctx, s) })
	if err != nil {
		return nil, err
	}
	r := &report{header: []string{"replicas", "transactions", "p50 before", "p50", "p99 before", "p99"}}
	lines := []line{{name: "p50 before"}, {name: "p50"}, {name: "p99 before"}, {name: "p99"}}
	for i, s := range stages {
		transactions, figures := 0, make([][]float64, len(lines))
		for _, m := range measured {
			transactions += len(m[i].during)
			for j, took := range []time.Duration{
				percentile(m[i].before, 50), percentile(m[i].during, 50),
				percentile(m[i].before, 99), percentile(m[i].during, 99),
			} {
				figures[j] = append(figures[j], inMilliseconds(took))
			}
		}
		row := []string{grouped(int64(s.size)), grouped(int64(transactions))}
		for j := range lines {
			lines[j].points = append(lines[j].points, over(s.size, figures[j]))
			row = append(row, fmt.Sprintf("%.2f ms", median(figures[j])))
		}
		r.row(row...)
	}
	r.note("%d clients, a transaction of each every %v: update an account, read it, note it. Before is a second of each round without a run.", clients, interval)
	r.note("%s", note)
	return r, l.draw(r, "foreground", chart{
		"What an application notices while replicas drain four databases", "replicas",
		[]panel{{"time of a transaction, ms", lines}},
	})
}

// disturbByDrain runs the application before the replicas begin and while they work.
func (l *lab) disturbByDrain(ctx context.Context, s stage) (b beside, others float64, err error) {
	a, err := l.arrange(ctx, s, func(*database) error { return nil })
	if err != nil {
		return b, 0, err
	}
	defer func() { err = errors.Join(err, a.drop(ctx)) }()
	clients, err := a.databases[0].application(ctx)
	if err != nil {
		return b, 0, err
	}
	return l.disturbedBy(ctx, clients, func(ctx context.Context) error { return drain(ctx, s, a.replicas) })
}
