package protection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// The climb from the protected rows to the rows above: see [Keeping].

// cascade leads from rows of a child to the row of the parent with which they are deleted.
type cascade struct {
	child, parent          catalog.Table
	columns, parentColumns []catalog.Column
	// only is a condition on the rows of the child, "" for all.
	only string
	// contains means that the parent owns the child, so messages omit this step.
	contains bool
	// keys gets the keys of the rows, which refer to nothing. nil: they refer to the parent.
	keys *keptKeys
}

// String returns the child and its columns, as the path of a protection shows them.
func (c *cascade) String() string { return c.child.Name + "." + catalog.JoinColumns(c.columns) }

// condition returns the SQL condition on the rows of the child t, "" for all.
func (c *cascade) condition(p *stmt.Parameters) string {
	if c.keys != nil && len(c.keys.child.Key.Conditions) > 0 {
		return "true" + c.keys.child.Equalities(p)
	}
	return c.only
}

// add adds the recorded key of a row. The first protection of a key counts.
func (k *keptKeys) add(cells []*string, by *pg.Protection) {
	values := make([]string, len(cells))
	for i, cell := range cells {
		at := i
		if k.child.Order != nil {
			at = k.child.Order[i]
		}
		values[at] = *cell
	}
	key := lfk.KeyOf(values...)
	k.found[key] = cmp.Or(k.found[key], by)
}

// keptRow is a row that must not be deleted.
type keptRow struct {
	// table contains the row. id is its id as text, nil for tables of neither users nor groups.
	table catalog.Table
	id    *string
	// cells are the values by which the row refers to others, in the order of its ways. nil is
	// NULL.
	cells      []*string
	protection *pg.Protection
	// path lists the references by which the protected row is deleted with this row.
	path []string
}

// keeper finds the rows that protections keep.
type keeper struct {
	tx pgx.Tx
	// own lists a table's cascades as a child. above lists the tables from which it inherits, below
	// the tables that inherit from it and have cascades of their own.
	own          map[catalog.Table][]*cascade
	above, below map[catalog.Table][]catalog.Table
	// kinds has the tables of users and of groups.
	kinds map[catalog.Table]string
	kept  Keeping
	// seen has the rows found so far, by their table, id and values.
	seen map[string]bool
}

// parentRowsSQL reads the rows of {table} with some values. It returns the position of the value,
// the id, and the values by which the row refers to others.
const parentRowsSQL = `
SELECT k.place::int - 1, t.id, t.cells
FROM unnest({lists}) WITH ORDINALITY AS k ({names}, place)
CROSS JOIN LATERAL (
  SELECT {id} AS id, ARRAY[{cells}]::text[] AS cells FROM {table} t WHERE {matches} LIMIT 10000) t`

const (
	// maxKeptRows and maxKeptLevels bound the climb.
	maxKeptRows   = 50_000
	maxKeptLevels = 100
)

// ways returns the cascades of the rows of a table, including inherited ones.
func (k *keeper) ways(table catalog.Table) []*cascade {
	ways := slices.Clone(k.own[table])
	for _, above := range k.above[table] {
		ways = append(ways, k.own[above]...)
	}
	return ways
}

// kind returns the kind of a table's rows, "" if they are neither users nor groups.
func (k *keeper) kind(table catalog.Table) string {
	kind := k.kinds[table]
	for _, above := range k.above[table] {
		kind = cmp.Or(kind, k.kinds[above])
	}
	return kind
}

// lookup is a table that is searched for values, each of the row at the same position.
type lookup struct {
	table catalog.Table
	// way led to the table. nil: the rows are the protected users or groups themselves.
	way     *cascade
	columns []catalog.Column
	// values has a list for each column, with a value for each of the rows.
	values [][]string
	rows   []*keptRow
}

// climb finds the rows above the protected rows, level by level. It stops after [maxKeptRows] rows
// or [maxKeptLevels] levels, without an error. Rows above are then not found.
func (k *keeper) climb(ctx context.Context, all []pg.Protection) error {
	// 1. Start at the rows of the protected users and groups.
	var next []*lookup
	for table, kind := range k.kinds {
		start := &lookup{columns: []catalog.Column{{Name: "id", Type: "bigint"}}, values: [][]string{nil}}
		for i := range all {
			if p := &all[i]; p.Kind == kind {
				start.values[0] = append(start.values[0], rowset.IDs(p.ID)[0])
				start.rows = append(start.rows, &keptRow{protection: p})
			}
		}
		next = append(next, k.in(table, start)...)
	}
	// 2. Each protected target keeps itself.
	for i := range all {
		k.kept[target{all[i].Kind, all[i].ID}] = &all[i]
	}
	// 3. Climb to the rows that the found rows refer to, with one round trip per level.
	for level := 0; level < maxKeptLevels && len(next) > 0 && len(k.seen) < maxKeptRows; level++ {
		// Maps have no order, and an error names one of several protections that keep a target.
		slices.SortStableFunc(next, func(a, b *lookup) int { return cmp.Compare(a.table.SQL(), b.table.SQL()) })
		found, err := k.find(ctx, next)
		if err != nil {
			return err
		}
		next = k.referred(found)
	}
	return nil
}

// in returns the lookups of a table and of those that inherit from it and have their own cascades.
func (k *keeper) in(table catalog.Table, l *lookup) (all []*lookup) {
	if len(l.rows) == 0 {
		return nil
	}
	for _, t := range append([]catalog.Table{table}, k.below[table]...) {
		one := *l
		one.table = t
		all = append(all, &one)
	}
	return all
}

// referred returns the lookups of the rows that rows refer to. A reference with NULL in a column is
// skipped. A way with keys records the row's key and ends there.
func (k *keeper) referred(rows []*keptRow) (next []*lookup) {
	byWay := map[*cascade]*lookup{}
	var order []*cascade
	for _, row := range rows {
		at := 0
		for _, way := range k.ways(row.table) {
			cells := row.cells[at : at+len(way.columns)]
			at += len(way.columns)
			switch {
			case slices.Contains(cells, nil):
				continue
			case way.keys != nil:
				way.keys.add(cells, row.protection)
				continue
			}
			l := byWay[way]
			if l == nil {
				l = &lookup{way: way, columns: way.parentColumns, values: make([][]string, len(cells))}
				byWay[way], order = l, append(order, way)
			}
			for i, cell := range cells {
				l.values[i] = append(l.values[i], *cell)
			}
			l.rows = append(l.rows, row)
		}
	}
	for _, way := range order {
		next = append(next, k.in(way.parent, byWay[way])...)
	}
	return next
}

// find reads the rows of lookups and records what they keep. It sends a statement for each lookup,
// all in one round trip.
func (k *keeper) find(ctx context.Context, lookups []*lookup) (found []*keptRow, err error) {
	batch := &pgx.Batch{}
	for _, l := range lookups {
		q := k.statement(l)
		batch.Queue(q.SQL, q.Args...).Query(func(rows pgx.Rows) error {
			var place int
			var id *string
			var cells []*string
			_, err := pgx.ForEachRow(rows, []any{&place, &id, &cells}, func() error {
				row := &keptRow{table: l.table, id: id, cells: slices.Clone(cells)}
				if k.keepRow(row, l.rows[place], l.way) {
					found = append(found, row)
				}
				return nil
			})
			return err
		})
	}
	return found, k.tx.SendBatch(ctx, batch).Close()
}

// keepRow keeps a row with the row below it, and reports whether it is new.
func (k *keeper) keepRow(row, below *keptRow, way *cascade) bool {
	var key strings.Builder
	key.WriteString(row.table.SQL())
	for _, cell := range append([]*string{row.id}, row.cells...) {
		if cell != nil {
			fmt.Fprintf(&key, " %q", *cell)
		} else {
			key.WriteString(" -")
		}
	}
	if k.seen[key.String()] {
		return false
	}
	k.seen[key.String()] = true
	row.protection, row.path = below.protection, below.path
	if way != nil && !way.contains {
		row.path = append([]string{way.String()}, below.path...)
	}
	if row.id == nil {
		return true
	}
	id, err := strconv.ParseInt(*row.id, 10, 64)
	t := target{k.kind(row.table), id}
	if _, known := k.kept[t]; err == nil && !known {
		p := *row.protection
		p.Path = row.path
		k.kept[t] = &p
	}
	return true
}

// statement returns the statement that reads the rows of a lookup. The statement returns at most
// 10,000 rows for each value.
func (k *keeper) statement(l *lookup) stmt.Statement {
	var p stmt.Parameters
	var lists, names, matches, cells []string
	for i, c := range l.columns {
		name := fmt.Sprint("v", i)
		lists, names = append(lists, c.List(l.values[i], &p)), append(names, name)
		matches = append(matches, fmt.Sprintf("t.%s = %s", stmt.Quote(c.Name), c.Listed("k."+name)))
	}
	for _, way := range k.ways(l.table) {
		for _, c := range way.columns {
			cell := "t." + stmt.Quote(c.Name) + "::text"
			if only := way.condition(&p); only != "" {
				cell = "CASE WHEN " + only + " THEN " + cell + " END"
			}
			cells = append(cells, cell)
		}
	}
	id := "NULL::text"
	if k.kind(l.table) != "" {
		id = "t.id::text"
	}
	return stmt.Statement{SQL: stmt.Fill(parentRowsSQL, "{lists}", strings.Join(lists, ", "), "{names}", strings.Join(names, ", "),
		"{id}", id, "{cells}", strings.Join(cells, ", "), "{table}", l.table.SQL(),
		"{matches}", strings.Join(matches, " AND ")), Args: p}
}
