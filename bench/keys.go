package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

// keyKind is a kind of key by which parents are known, and by which their children refer to them.
type keyKind struct {
	name, suffix string
	// columns are the types of the key's columns, values what stands in them in the parent number i.
	columns, values []string
}

func keyKinds() []keyKind {
	return []keyKind{
		{"bigint", "bigint", []string{"bigint"}, []string{"i"}},
		// In the order in which they were made, as version 7 has them.
		{"uuid, in order", "uuid", []string{"uuid"}, []string{"('018bcfe5-6800-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid"}},
		{"uuid, at random", "random", []string{"uuid"}, []string{"md5(i::text)::uuid"}},
		{"text", "text", []string{"text"}, []string{"'customer ' || i"}},
		{"bigint and uuid", "two", []string{"bigint", "uuid"}, []string{"i % 100", "md5(i::text)::uuid"}},
	}
}

// list joins the key's columns, %[1]d being the number of each and %[2]s its type.
func (k keyKind) list(format string) string {
	parts := make([]string, len(k.columns))
	for i, column := range k.columns {
		parts[i] = fmt.Sprintf(format, i+1, column)
	}
	return strings.Join(parts, ", ")
}

func (k keyKind) definition() lfk.Definition {
	return lfk.Definition{
		Table: "children_" + k.suffix, Parent: "parents_" + k.suffix, OnDelete: lfk.AsyncDelete,
		Columns: strings.Split(k.list("parent_%[1]d"), ", "),
	}
}

// tables are parents and their children, which came in turn, as in (a).
func (k keyKind) tables(l *lab) []string {
	parents := l.parents + max(l.parents/10, 1)
	return []string{
		fmt.Sprintf(`CREATE TABLE parents_%s (%s, number bigint NOT NULL, PRIMARY KEY (%s))`,
			k.suffix, k.list("id_%[1]d %[2]s"), k.list("id_%[1]d")),
		fmt.Sprintf(`CREATE TABLE children_%s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, %s, title text NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now())`, k.suffix, k.list("parent_%[1]d %[2]s NOT NULL")),
		fmt.Sprintf(`INSERT INTO parents_%s SELECT %s, i FROM generate_series(1, %d) i`,
			k.suffix, strings.Join(k.values, ", "), parents),
		fmt.Sprintf(`INSERT INTO children_%s (%s, title) SELECT %s, 'child ' || n || ' of parent ' || number
			FROM generate_series(1, %d) n, parents_%[1]s ORDER BY n, number`,
			k.suffix, k.list("parent_%[1]d"), k.list("id_%[1]d"), l.children),
		fmt.Sprintf(`CREATE INDEX ON children_%s (%s)`, k.suffix, k.list("parent_%[1]d")),
	}
}

// compareKeys is (m): the same rows, known by keys of several kinds.
func compareKeys(ctx context.Context, l *lab) (*report, error) {
	kinds := keyKinds()
	if err := l.buildKeys(ctx, kinds); err != nil {
		return nil, err
	}
	ways := make([]way, len(kinds))
	for i, k := range kinds {
		ways[i] = way{k.name, k.ready}
	}
	measured, note, err := l.race(ctx, "keys", l.repeat, checkKeys, ways...)
	if err != nil {
		return nil, err
	}
	r := &report{header: []string{"key", "median", "range", "server CPU", "rows/s", "time × bigint", "server CPU × bigint"}}
	r.standings(l.parents*l.children, measured, ways...)
	took, _ := results(measured)
	for i, k := range kinds[1:] {
		ratio := median(ratios(took[i+1], took[0]))
		l.target(r, "caretaker's time with keys of "+k.name, "at most 1.25 × that with bigint", times(ratio), ratio <= 1.25)
	}
	r.note("%s", note)
	return r, nil
}

// buildKeys makes a database with a queue of caretaker's own and a pair of tables for each kind.
func (l *lab) buildKeys(ctx context.Context, kinds []keyKind) error {
	if err := l.cluster.CreateDatabase(ctx, "keys"); err != nil {
		return err
	}
	main, err := repo.Open(ctx, "main", l.cluster.URL("keys"))
	if err != nil {
		return err
	}
	defer main.Close()
	if err := migrate(ctx, l.cluster.URL("keys")); err != nil {
		return err
	}
	d, err := l.connect(ctx, "keys")
	if err != nil {
		return err
	}
	admin := admin.New(main.Database)
	_, err = admin.InstallQueue(ctx)
	for _, k := range kinds {
		if err == nil {
			err = d.exec(ctx, k.tables(l)...)
		}
		if err == nil {
			_, err = admin.Track(ctx, "parents_"+k.suffix, strings.Split(k.list("id_%[1]d"), ", ")...)
		}
	}
	if err == nil {
		err = d.exec(ctx, `VACUUM (FREEZE, ANALYZE)`)
	}
	return errors.Join(err, d.conn.Close(ctx))
}

// ready has a server that has run before, with nothing to do, and deleted parents.
func (k keyKind) ready(ctx context.Context, d *database) (work, error) {
	c, err := newCaretaker(ctx, d, []lfk.Definition{k.definition()}, 0)
	if err != nil {
		return nil, err
	}
	clean := func(ctx context.Context) error {
		_, err := c.clean(ctx)
		return err
	}
	if err := clean(ctx); err != nil {
		return nil, err
	}
	return clean, d.exec(ctx, fmt.Sprintf(`DELETE FROM parents_%s WHERE number <= %d`, k.suffix, d.lab.parents))
}

// checkKeys makes sure that of each pair of tables nothing is left to do, or nothing has been done.
func checkKeys(ctx context.Context, d *database) error {
	done := 0
	for _, k := range keyKinds() {
		var parents, children int
		if err := d.one(ctx, &parents, `SELECT count(*) FROM parents_`+k.suffix); err != nil {
			return err
		}
		if err := d.one(ctx, &children, `SELECT count(*) FROM children_`+k.suffix); err != nil {
			return err
		}
		if children != parents*d.lab.children {
			return fmt.Errorf("%s: %d parents have %d children, which should be %d", k.name, parents, children, parents*d.lab.children)
		}
		if parents < d.lab.parents {
			done++
		}
	}
	if done != 1 {
		return fmt.Errorf("the rows of %d kinds of keys were deleted, which should be one", done)
	}
	return nil
}
