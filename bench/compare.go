package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// side is a way to remove the children of deleted parents.
type side struct {
	name string
	// cascade works on the pair of tables with a real foreign key, and deletes the parents itself.
	cascade bool
	// ready sets up what a process that is running for long has at hand, and returns what is to be
	// measured.
	ready func(context.Context, *database) (work, error)
}

type work func(context.Context) error

func sides() []side {
	return []side{
		{name: "caretaker", ready: readyCaretaker},
		{name: "ON DELETE CASCADE", cascade: true, ready: readyStatement(`DELETE FROM cascade_parents WHERE id <= %d`)},
		{name: "reference algorithm", ready: readyReference},
		{name: "one DELETE for all", ready: readyStatement(`DELETE FROM children WHERE parent_id <= %d`)},
	}
}

func definition() []lfk.Definition {
	return []lfk.Definition{{Table: "children", Columns: []string{"parent_id"}, Parent: "parents", OnDelete: lfk.AsyncDelete}}
}

// readyCaretaker uses a server that has run before, with nothing to do.
func readyCaretaker(ctx context.Context, d *database) (work, error) {
	c, err := newCaretaker(ctx, d, definition(), 0)
	if err != nil {
		return nil, err
	}
	clean := func(ctx context.Context) error {
		_, err := c.clean(ctx)
		return err
	}
	return clean, clean(ctx)
}

// readyReference lets the reference find rows by the index, as it does in tables of GitLab's size.
// In one of this size the planner would read the whole table for each statement.
func readyReference(ctx context.Context, d *database) (work, error) {
	return reference{d.conn, definition()}.clean, d.exec(ctx, `SET enable_seqscan = off`)
}

func readyStatement(sql string) func(context.Context, *database) (work, error) {
	return func(_ context.Context, d *database) (work, error) {
		return func(ctx context.Context) error { return d.exec(ctx, fmt.Sprintf(sql, d.lab.parents)) }, nil
	}
}

// layout is the order in which the children came into their table.
type layout struct{ template, name, order string }

func layouts() []layout {
	return []layout{
		// One child of each parent after the other: parents deleted together have their children on the same pages.
		{"in_turn", "in turn", "n, p.id"},
		// In no order: each child is on a page of its own.
		{"shuffled", "shuffled", "hashint8(p.id * 1000 + n)"},
	}
}

// family is a pair of tables. One parent in eleven lives on.
func (l *lab) family(prefix, constraint, order string) []string {
	parents := l.parents + max(l.parents/10, 1)
	return []string{
		fmt.Sprintf(`CREATE TABLE %sparents (id bigint PRIMARY KEY, name text NOT NULL)`, prefix),
		fmt.Sprintf(`CREATE TABLE %schildren (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent_id bigint NOT NULL %s,
			title text NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`, prefix, constraint),
		fmt.Sprintf(`INSERT INTO %sparents SELECT i, 'parent ' || i FROM generate_series(1, %d) i`, prefix, parents),
		fmt.Sprintf(`INSERT INTO %schildren (parent_id, title) SELECT p.id, 'child ' || n || ' of ' || p.name
			FROM generate_series(1, %d) n, %[1]sparents p ORDER BY %[3]s`, prefix, l.children, order),
		fmt.Sprintf(`CREATE INDEX ON %schildren (parent_id)`, prefix),
	}
}

const trackParents = `CREATE TRIGGER parents_loose_fk_trigger AFTER DELETE ON parents REFERENCING OLD TABLE AS old_table
	FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`

// compareWays is (a): the same rows in every way, each on a fresh copy of the same database.
func compareWays(ctx context.Context, l *lab) (*report, error) {
	r := &report{header: []string{"children came", "way", "median", "range", "server CPU", "rows/s", "× cascade", "× reference"}}
	for _, y := range layouts() {
		statements := append(l.family("", "", y.order), l.family("cascade_", "REFERENCES cascade_parents ON DELETE CASCADE", y.order)...)
		if err := l.build(ctx, y.template, append(statements, trackParents)...); err != nil {
			return nil, err
		}
		if err := l.compareLayout(ctx, r, y); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (l *lab) compareLayout(ctx context.Context, r *report, y layout) error {
	all := sides()
	var deleting []time.Duration
	measured, note, err := rounds(l, l.repeat, func(round int) ([]cost, float64, error) {
		costs, others := make([]cost, len(all)), 0.0
		for i := range all {
			if round%2 == 1 {
				i = len(all) - 1 - i
			}
			deleted, cleaned, err := l.measure(ctx, y.template, all[i])
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", all[i].name, err)
			}
			l.say("  %s, %s: %s", y.name, all[i].name, seconds(cleaned.time))
			costs[i], others = cleaned, max(others, cleaned.others)
			if !all[i].cascade {
				deleting = append(deleting, deleted)
			}
		}
		return costs, others, nil
	})
	if err != nil {
		return err
	}
	l.ways(r, y, measured)
	r.note("The application's own DELETE of the parents, which notes their keys, took %s; with ON DELETE CASCADE it waits for all of it.",
		seconds(median(deleting)))
	r.note("%s", note)
	return nil
}

// measure returns how long the application's DELETE took, and how long removing the children.
func (l *lab) measure(ctx context.Context, template string, s side) (deleting time.Duration, cleaning cost, err error) {
	d, err := l.fresh(ctx, template)
	if err != nil {
		return 0, cost{}, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	run, err := s.ready(ctx, d)
	if err != nil {
		return 0, cost{}, err
	}
	if !s.cascade {
		start := time.Now()
		if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM parents WHERE id <= %d`, l.parents)); err != nil {
			return 0, cost{}, err
		}
		deleting = time.Since(start)
	}
	if err := d.settle(ctx); err != nil {
		return 0, cost{}, err
	}
	cleaning, err = l.timed(func() error { return run(ctx) })
	if err != nil {
		return 0, cost{}, err
	}
	return deleting, cleaning, d.verify(ctx, s)
}

// verify makes sure that the work is done, and no more than the work.
func (d *database) verify(ctx context.Context, s side) error {
	prefix := map[bool]string{true: "cascade_"}[s.cascade]
	var orphans, living int
	if err := d.one(ctx, &orphans, fmt.Sprintf(`SELECT count(*) FROM %schildren WHERE parent_id <= %d`, prefix, d.lab.parents)); err != nil {
		return err
	}
	if err := d.one(ctx, &living, fmt.Sprintf(`SELECT count(*) FROM %schildren`, prefix)); err != nil {
		return err
	}
	if want := max(d.lab.parents/10, 1) * d.lab.children; orphans != 0 || living != want {
		return fmt.Errorf("%d children are left that should have gone, and %d in all, which should be %d", orphans, living, want)
	}
	return nil
}

func (l *lab) ways(r *report, y layout, measured [][]cost) {
	took, server := make([][]time.Duration, len(sides())), make([][]float64, len(sides()))
	for _, costs := range measured {
		for i, c := range costs {
			took[i], server[i] = append(took[i], c.time), append(server[i], c.server)
		}
	}
	cascade, referenced := took[1], took[2]
	for i, s := range sides() {
		r.row(y.name, s.name, seconds(median(took[i])), spread(took[i]), fmt.Sprintf("%.2f s", median(server[i])),
			perSecond(int64(l.parents*l.children), median(took[i])),
			times(median(ratios(took[i], cascade))), times(median(ratios(took[i], referenced))))
	}
	ours, faster := median(ratios(took[0], cascade)), median(ratios(referenced, took[0]))
	cpu := median(quotients(server[0], server[1]))
	l.target(r, "caretaker's time, "+y.name+",", "at most 0.70 × that of ON DELETE CASCADE", times(ours), ours <= 0.7)
	l.target(r, "the reference algorithm's time, "+y.name+",", "at least 10 × caretaker's", times(faster), faster >= 10)
	l.target(r, "caretaker's server CPU, "+y.name+",", "at most 1.00 × that of ON DELETE CASCADE", times(cpu), cpu <= 1)
}
