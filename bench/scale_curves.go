package main

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// curves are what -scale measures. Their names are what -only takes.
func curves() []scenario {
	all := []curve{
		{"backlog", "a queue of deleted parents with a child each", "records", backlogStages},
		{"children", "the same rows, of few parents or of many", "children of a parent", childrenStages},
		{"definitions", "the same rows, in one table or in many", "definitions", definitionStages},
		{"databases", "the same rows, in one database or in many", "databases", databaseStages},
		{"replicas", "four databases with a queue each, worked by replicas", "replicas", replicaStages},
	}
	scenarios := make([]scenario, 0, len(all)+1)
	for _, c := range all {
		scenarios = append(scenarios, scenario{c.name, c.title, c.measure})
	}
	return append(scenarios,
		scenario{"trigger", "What noting the keys costs the DELETE", measureTrigger},
		scenario{"foreground", "What an application notices while replicas drain queues", measureForegroundByReplicas},
		scenario{"history", "What a long history costs", measureHistoryBySize},
	)
}

// sizes are those of a curve that its largest one and -quick leave.
func (l *lab) sizes(largest int, all ...int) (out []int) {
	for _, size := range all {
		if size <= largest && (!l.quick || len(out) < 2) {
			out = append(out, size)
		}
	}
	return out
}

// derive makes a database with an empty queue, migrated for caretaker, and fills it.
func (l *lab) derive(ctx context.Context, name string, statements []string) error {
	var made bool
	d, err := l.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer func() { _ = d.conn.Close(ctx) }()
	if err := d.one(ctx, &made, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'scale')`); err != nil {
		return err
	}
	if !made {
		if err := l.build(ctx, "scale"); err != nil {
			return err
		}
	}
	filled, err := l.copy(ctx, "scale", name)
	if err != nil {
		return err
	}
	defer func() { _ = filled.conn.Close(ctx) }()
	return filled.exec(ctx, append(statements, `VACUUM (FREEZE, ANALYZE)`)...)
}

// bereaved are deleted parents, their records in the queue, and their children, which came in turn, in several tables of
// so many rows each. One child in eleven has a parent that lives on.
type bereaved struct {
	number, parents, tables, rows int
}

func (b bereaved) parent() string { return fmt.Sprintf("parents_%d", b.number) }

func (b bereaved) child(table int) string { return fmt.Sprintf("children_%d_%d", b.number, table) }

func (b bereaved) statements() []string {
	out := []string{fmt.Sprintf(`INSERT INTO loose_foreign_keys_deleted_records
		(fully_qualified_table_name, primary_key_value, created_at, consume_after)
		SELECT 'public.%s', i, now() - (%[2]d - i) * interval '1 ms', now() - (%[2]d - i) * interval '1 ms'
		FROM generate_series(1, %[2]d) i`, b.parent(), b.parents)}
	for t := range b.tables {
		out = append(out,
			fmt.Sprintf(`CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent_id bigint NOT NULL,
				title text NOT NULL)`, b.child(t)),
			fmt.Sprintf(`INSERT INTO %s (parent_id, title)
				SELECT CASE WHEN i < %d THEN (i * %d + %d) %% %d + 1 ELSE %[5]d + i END, 'child ' || i
				FROM generate_series(0::bigint, %d) i`, b.child(t), b.rows, b.tables, t, b.parents, b.rows+b.rows/10),
			fmt.Sprintf(`CREATE INDEX ON %s (parent_id)`, b.child(t)))
	}
	return out
}

func (b bereaved) keys() []lfk.Definition {
	keys := make([]lfk.Definition, b.tables)
	for t := range keys {
		keys[t] = lfk.Definition{
			Table: b.child(t), Columns: []string{"parent_id"}, Parent: b.parent(), OnDelete: lfk.AsyncDelete,
		}
	}
	return keys
}

// inOneDatabase is a stage with one queue, in one database.
func (l *lab) inOneDatabase(ctx context.Context, template string, size int, b bereaved) (stage, error) {
	return stage{
		size: size, templates: []string{template}, keys: b.keys(), queues: 1, replicas: 1, rows: b.rows * b.tables,
	}, l.derive(ctx, template, b.statements())
}

func each(sizes []int, stageOf func(size int) (stage, error)) (out []stage, err error) {
	for _, size := range sizes {
		s, err := stageOf(size)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", size, err)
		}
		out = append(out, s)
	}
	return out, nil
}

func backlogStages(ctx context.Context, l *lab) ([]stage, error) {
	largest := l.backlog
	if l.full {
		largest = max(largest, 10_000_000)
	}
	return each(l.sizes(largest, 1000, 10_000, 100_000, 1_000_000, 10_000_000), func(records int) (stage, error) {
		return l.inOneDatabase(ctx, fmt.Sprintf("backlog_%d", records), records, bereaved{parents: records, tables: 1, rows: records})
	})
}

func childrenStages(ctx context.Context, l *lab) ([]stage, error) {
	return each(l.sizes(1_000_000, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000), func(children int) (stage, error) {
		parents := max(l.rows/children, 1)
		return l.inOneDatabase(ctx, fmt.Sprintf("children_%d", children), children,
			bereaved{parents: parents, tables: 1, rows: parents * children})
	})
}

// definitionStages have 2,000 parents, who have children in each table.
func definitionStages(ctx context.Context, l *lab) ([]stage, error) {
	return each(l.sizes(331, 1, 10, 33, 100, 331), func(definitions int) (stage, error) {
		return l.inOneDatabase(ctx, fmt.Sprintf("definitions_%d", definitions), definitions,
			bereaved{parents: min(2000, l.rows), tables: definitions, rows: max(l.rows/definitions, 1)})
	})
}

// databaseStages have the parents in main, and the child table in all databases: each parent has a child in each.
func databaseStages(ctx context.Context, l *lab) ([]stage, error) {
	return each(l.sizes(30, 1, 3, 10, 30), func(databases int) (stage, error) {
		parents := max(l.rows/databases, 1)
		s, err := l.inOneDatabase(ctx, fmt.Sprintf("databases_%d", databases), databases,
			bereaved{parents: parents, tables: 1, rows: parents})
		for range databases - 1 {
			s.templates = append(s.templates, s.templates[0])
		}
		s.rows *= databases
		return s, err
	})
}

// replicaStages have four databases, each with parents and children of its own.
func replicaStages(ctx context.Context, l *lab) ([]stage, error) {
	return l.fourDatabases(ctx, "replicas", l.rows)
}

// fourDatabases are drained of so many rows by one to four replicas. main has further tables.
func (l *lab) fourDatabases(ctx context.Context, prefix string, rows int, inMain ...string) ([]stage, error) {
	const databases = 4
	all := stage{queues: databases}
	for i := range databases {
		b := bereaved{number: i, parents: max(rows/10/databases, 1), tables: 1, rows: max(rows/databases, 1)}
		template := fmt.Sprintf("%s_%d", prefix, i)
		if err := l.derive(ctx, template, append(b.statements(), inMain...)); err != nil {
			return nil, err
		}
		inMain = nil
		all.templates, all.keys, all.rows = append(all.templates, template), append(all.keys, b.keys()...), all.rows+b.rows
	}
	return each(l.sizes(databases, 1, 2, 3, 4), func(replicas int) (stage, error) {
		s := all
		s.size, s.replicas = replicas, replicas
		return s, nil
	})
}
