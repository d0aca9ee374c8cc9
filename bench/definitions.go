package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// childless is the number of deleted parents in (c): one batch.
const childless = 500

// countStatements is (c): how often the child tables are asked when there is nothing to clean.
func countStatements(ctx context.Context, l *lab) (*report, error) {
	keys := make([]lfk.Definition, l.definitions)
	statements := []string{`CREATE EXTENSION pg_stat_statements`}
	for i := range keys {
		keys[i] = lfk.Definition{Table: fmt.Sprintf("child_%03d", i+1), Columns: []string{"parent_id"}, Parent: "parents", OnDelete: lfk.AsyncDelete}
		statements = append(statements,
			fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY, parent_id bigint)`, keys[i].Table),
			fmt.Sprintf(`INSERT INTO %s SELECT i, %d + i FROM generate_series(1, 1000) i`, keys[i].Table, childless),
			fmt.Sprintf(`CREATE INDEX ON %s (parent_id)`, keys[i].Table))
	}
	statements = append(statements, fmt.Sprintf(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.parents', i FROM generate_series(1, %d) i`, childless))
	if counts, err := l.countsStatements(ctx); err != nil || !counts {
		return &report{header: []string{"way", "statements a definition"}, notes: []string{"Not measured: the server has no pg_stat_statements."}}, err
	}
	if err := l.build(ctx, "many_definitions", statements...); err != nil {
		return nil, err
	}
	r := &report{header: []string{"way", "statements that name a child", "a definition", "time"}}
	var ours float64
	for _, name := range []string{"caretaker", "reference algorithm"} {
		calls, took, err := l.statements(ctx, name, keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		each := float64(calls) / float64(len(keys))
		r.row(name, grouped(calls), fmt.Sprintf("%.2f", each), seconds(took))
		if name == "caretaker" {
			ours = each
		}
	}
	l.target(r, "statements that name a child, a definition", "at most 1.20", fmt.Sprintf("%.2f", ours), ours <= 1.2)
	r.note("%d records without children, %d definitions.", childless, len(keys))
	return r, nil
}

func (l *lab) countsStatements(ctx context.Context) (bool, error) {
	d, err := l.connect(ctx, "postgres")
	if err != nil {
		return false, err
	}
	var loaded bool
	err = d.one(ctx, &loaded, `SELECT current_setting('shared_preload_libraries') LIKE '%pg_stat_statements%'`)
	return loaded, errors.Join(err, d.conn.Close(ctx))
}

// statements returns the number of statements that named a child table, and how long it took.
func (l *lab) statements(ctx context.Context, way string, keys []lfk.Definition) (calls int64, took time.Duration, err error) {
	d, err := l.fresh(ctx, "many_definitions")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	clean := reference{d.conn, keys}.clean
	if way == "caretaker" {
		c, err := newCaretaker(ctx, d, keys, 0)
		if err != nil {
			return 0, 0, err
		}
		clean = func(ctx context.Context) error {
			_, err := c.clean(ctx)
			return err
		}
	}
	if err := d.settle(ctx); err != nil {
		return 0, 0, err
	}
	if err := d.exec(ctx, `SELECT pg_stat_statements_reset()`); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := clean(ctx); err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	err = d.one(ctx, &calls, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
		WHERE query ~ '\mchild_[0-9]{3}\M' AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if err != nil {
		return 0, 0, err
	}
	var pending int64
	err = d.one(ctx, &pending, `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE status = 1`)
	if err == nil && (pending > 0 || calls < int64(len(keys))) {
		err = fmt.Errorf("%d records are left after %d statements", pending, calls)
	}
	return calls, took, err
}
