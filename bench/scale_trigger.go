package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// guarded is a way to look after the children of a deleted parent. Its tables bear its name.
type guarded struct{ name, table string }

func guards() []guarded {
	return []guarded{
		{"nothing", "bare"},
		{"our trigger", "noted"},
		{"foreign key, no child", "childless"},
		{"foreign key, 10 children", "cascading"},
	}
}

// deletes are the sizes of DELETE statements, and how many parents each way loses at each size.
func (l *lab) deletes() (sizes []int, parents int) {
	sizes = l.sizes(l.rows/10, 1, 10, 100, 1000, 10_000)
	return sizes, sizes[len(sizes)-1]
}

func (l *lab) guardedTables() []string {
	sizes, parents := l.deletes()
	parents *= len(sizes)
	var out []string
	for _, g := range guards() {
		out = append(out, fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY, name text NOT NULL)`, g.table),
			fmt.Sprintf(`INSERT INTO %s SELECT i, 'parent ' || i FROM generate_series(1, %d) i`, g.table, parents+1))
	}
	out = append(out, `CREATE TRIGGER noted_loose_fk_trigger AFTER DELETE ON noted REFERENCING OLD TABLE AS old_table
		FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`)
	for _, g := range guards()[2:] {
		from := map[string]int{"childless": parents + 1, "cascading": 1}[g.table]
		out = append(out,
			fmt.Sprintf(`CREATE TABLE %s_children (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				parent_id bigint NOT NULL REFERENCES %[1]s ON DELETE CASCADE, title text NOT NULL)`, g.table),
			fmt.Sprintf(`INSERT INTO %s_children (parent_id, title) SELECT i, 'child ' || n
				FROM generate_series(1, 10) n, generate_series(%d, %d) i`, g.table, from, parents+1),
			fmt.Sprintf(`CREATE INDEX ON %s_children (parent_id)`, g.table))
	}
	return out
}

// measureTrigger is what a DELETE of parents takes, a parent, by how many the statement deletes.
func measureTrigger(ctx context.Context, l *lab) (*report, error) {
	if err := l.derive(ctx, "guarded", l.guardedTables()); err != nil {
		return nil, err
	}
	sizes, _ := l.deletes()
	measured, note, err := rounds(l, l.repeat, func(round int) (took [][]float64, others float64, err error) {
		c, err := l.timed(func() (err error) {
			took, err = l.deleteGuarded(ctx, round)
			return err
		})
		return took, c.others, err
	})
	if err != nil {
		return nil, err
	}
	r := &report{header: []string{"parents in a DELETE"}}
	lines := make([]line, len(guards()))
	for i, g := range guards() {
		r.header, lines[i].name = append(r.header, g.name), g.name
	}
	for s, size := range sizes {
		row := []string{grouped(int64(size))}
		for i := range lines {
			var micros []float64
			for _, m := range measured {
				micros = append(micros, m[s][i])
			}
			lines[i].points = append(lines[i].points, over(size, micros))
			row = append(row, fmt.Sprintf("%.1f µs (%.1f to %.1f)", median(micros), slices.Min(micros), slices.Max(micros)))
		}
		r.row(row...)
	}
	r.note("Time of the DELETE for each parent, with its transaction: median (range). %s", note)
	return r, l.draw(r, "trigger", chart{
		"What looking after children costs the DELETE of a parent", "parents in a DELETE",
		[]panel{{"µs each", lines}},
	})
}

// deleteGuarded deletes parents in all ways, in turn at each size: µs for each parent, by size and way.
func (l *lab) deleteGuarded(ctx context.Context, round int) (micros [][]float64, err error) {
	d, err := l.fresh(ctx, "guarded")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	sizes, parents := l.deletes()
	for s, size := range sizes {
		row := make([]float64, len(guards()))
		for i := range guards() {
			i = (i + round) % len(row)
			table, start := guards()[i].table, time.Now()
			for first := s*parents + 1; first <= (s+1)*parents; first += size {
				done, err := d.conn.Exec(ctx, `DELETE FROM `+table+` WHERE id BETWEEN $1 AND $2`, first, first+size-1)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", table, err)
				}
				if done.RowsAffected() != int64(size) {
					return nil, fmt.Errorf("%s: %d parents were deleted, which should be %d", table, done.RowsAffected(), size)
				}
			}
			row[i] = float64(time.Since(start).Microseconds()) / float64(parents)
		}
		micros = append(micros, row)
	}
	var noted int
	if err := d.one(ctx, &noted, `SELECT count(*) FROM loose_foreign_keys_deleted_records`); err != nil {
		return nil, err
	}
	if want := len(sizes) * parents; noted != want {
		return nil, fmt.Errorf("%d keys were noted, which should be %d", noted, want)
	}
	return micros, nil
}
