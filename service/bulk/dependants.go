package bulk

import (
	"context"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// dependant is a table with rows that depend on rows of another table, its parent.
type dependant struct {
	table catalog.Table
	// column names the reference in messages. missing is the column without which the target of the
	// reference is unknown, or "".
	column, missing string
	// kind is the type column of a reference without a foreign key.
	kind string
	// parent are the columns of the parent that the rows refer to.
	parent []catalog.Column
	// rows returns the rows that refer to these values of the parent's columns.
	rows     func(values [][]string) rowset.Rows
	onDelete onDelete
	// nullify is the change that nullifies the rows. required is a NOT NULL column in it, or "".
	nullify  rowset.Change
	required string
	// waiting rows prevent the removal and are of a table on the path: nothing removes them first.
	// own: that table is the parent itself, and rows that are removed together prevent nothing.
	waiting, own bool
}

// onDelete is the action for a dependant's rows, in the order of execution.
type onDelete int

const (
	// removed: deleted together with the rows that they depend on.
	removed onDelete = iota
	// nullified: they stay, without their reference.
	nullified
	// forbidding: they are not changed, and must not exist.
	forbidding
)

// order sorts dependants: first those that prevent a removal whatever else is removed, so that no
// row is removed in vain.
func (d dependant) order() int {
	if d.waiting {
		return -1
	}
	return int(d.onDelete)
}

func sortDependants(all []dependant) {
	slices.SortStableFunc(all, func(a, b dependant) int { return a.order() - b.order() })
}

// TypedReference is a reference, without a foreign key, to rows of several tables: by an id, and a
// column Kind for the type.
type TypedReference struct{ Table, ID, Kind string }

// typedReferences returns the children without a foreign key, by parent table.
func typedReferences(table string) (kind string, references []TypedReference) {
	kinds := map[string]string{
		"issues": "Issue", "merge_requests": "MergeRequest", "snippets": "Snippet", "epics": "Epic",
		"notes": "Note", "namespaces": "Namespace", "projects": "Project",
	}
	kind = kinds[table]
	switch kind {
	case "":
		return "", nil
	case "Note":
		return kind, []TypedReference{{"award_emoji", "awardable_id", "awardable_type"}}
	case "Namespace", "Project":
		return kind, []TypedReference{
			{"members", "source_id", "source_type"}, {"routes", "source_id", "source_type"},
		}
	}
	return kind, []TypedReference{
		{"notes", "noteable_id", "noteable_type"},
		{"award_emoji", "awardable_id", "awardable_type"},
		{"todos", "target_id", "target_type"},
		{"events", "target_id", "target_type"},
		{"subscriptions", "subscribable_id", "subscribable_type"},
	}
}

// Cascades returns the typed references, for finding the rows that protections keep.
func Cascades() (all []repo.JobCascade) {
	for _, parent := range []string{
		"issues", "merge_requests", "snippets", "epics", "notes", "namespaces", "projects",
	} {
		kind, references := typedReferences(parent)
		for _, r := range references {
			all = append(all, repo.JobCascade{
				Child: r.Table, Column: r.ID, Parent: parent, ParentColumn: "id",
				OnlyColumn: r.Kind, Only: "= '" + kind + "'",
			})
		}
	}
	return all
}

// allTypedReferences returns those to any table.
func allTypedReferences() (all []TypedReference) {
	for _, table := range []string{"issues", "notes", "projects"} {
		_, references := typedReferences(table)
		all = append(all, references...)
	}
	return all
}

// UntypedReferences returns those of a database whose type column is missing: rows that may refer
// to a removed row prevent its removal.
func UntypedReferences(c *catalog.Catalog) (untyped []TypedReference) {
	for _, r := range allTypedReferences() {
		t := c.Table(r.Table)
		if t.Has(r.ID) && !t.Has(r.Kind) && !slices.Contains(untyped, r) {
			untyped = append(untyped, r)
		}
	}
	return untyped
}

// outside is a column with paths that removed rows leave outside the database, and their kind.
type outside struct{ column, kind string }

// outsideColumns returns those columns by table.
func outsideColumns() map[string]outside {
	return map[string]outside{
		"snippet_repositories": {"disk_path", "snippet_repository"},
		"project_repositories": {"disk_path", "project_repository"},
	}
}

// ForRemoval adds the tables and columns of bounded removal to those that a catalogue must read.
func ForRemoval(wanted map[string][]string) map[string][]string {
	for _, r := range allTypedReferences() {
		wanted[r.Table] = append(wanted[r.Table], r.ID, r.Kind)
	}
	for table, of := range outsideColumns() {
		wanted[table] = append(wanted[table], of.column)
	}
	return wanted
}

// deletion returns the change that deletes the rows, and records and reports their paths.
func deletion(c *catalog.Catalog, t catalog.Table) rowset.Change {
	of := outsideColumns()[t.Name]
	if r := c.Table(t.Name); of.column == "" || r == nil || r.Table != t || !r.Has(of.column) {
		of = outside{}
	}
	return rowset.Change{Delete: true, Report: of.column, Outside: of.kind}
}

// dependantsOf returns all tables with rows that can depend on rows of this one, by foreign keys of
// any schema and by typed references.
func dependantsOf(c *catalog.Catalog, parent catalog.Table) (all []dependant) {
	for _, k := range c.References(parent) {
		d := dependant{
			table: k.Child, column: k.ColumnNames(), parent: k.ParentColumns, onDelete: forbidding,
			rows: func(values [][]string) rowset.Rows { return rowset.Children(c, k, values) },
		}
		switch k.OnDelete {
		case catalog.OnDeleteCascade:
			d.onDelete = removed
		case catalog.OnDeleteSetNull:
			d.onDelete, d.nullify, d.required = nullified, rowset.Nullify(k), k.Required()
		}
		all = append(all, d)
	}
	kind, references := typedReferences(parent.Name)
	for _, r := range references {
		t := c.Table(r.Table)
		if t == nil || t.Schema != parent.Schema || !t.Has(r.ID) {
			continue
		}
		id := catalog.Column{Name: "id", Type: "bigint"}
		d := dependant{table: t.Table, column: r.ID, kind: r.Kind, parent: []catalog.Column{id}}
		condition := "t." + r.Kind + " = '" + kind + "'"
		if !t.Has(r.Kind) {
			d.onDelete, d.missing, condition = forbidding, r.Kind, ""
		}
		d.rows = func(values [][]string) rowset.Rows {
			rows, _ := rowset.RowsOf(c, r.Table, r.ID, values[0]...)
			rows.Condition = condition
			return rows
		}
		all = append(all, d)
	}
	sortDependants(all)
	return all
}

// KeyColumns returns the columns of a table that its dependants refer to.
func KeyColumns(c *catalog.Catalog, table catalog.Table) (columns []catalog.Column) {
	for _, d := range dependantsOf(c, table) {
		for _, column := range d.parent {
			if indexOf(columns, column) < 0 {
				columns = append(columns, column)
			}
		}
	}
	return columns
}

func indexOf(columns []catalog.Column, c catalog.Column) int {
	return slices.IndexFunc(columns, func(known catalog.Column) bool { return known.Name == c.Name })
}

// of returns the rows that refer to rows with these values of the parent's columns.
func (d dependant) of(columns []catalog.Column, values [][]string) rowset.Rows {
	own := make([][]string, len(d.parent))
	for i, c := range d.parent {
		own[i] = values[indexOf(columns, c)]
	}
	if d.own {
		return d.rows(own).Except(columns, values)
	}
	return d.rows(own)
}

// present returns the dependants of this removal that have rows, in order.
func (r *Removal) present(
	ctx context.Context, table catalog.Table, columns []catalog.Column, values [][]string,
) (some []dependant, err error) {
	plan := r.planned()
	all := slices.DeleteFunc(dependantsOf(r.Catalog, table), func(d dependant) bool {
		entered := d.onDelete == removed && slices.Contains(r.path, d.table)
		return entered && plan == nil || slices.Contains(r.except, d.table.Name) && d.missing == ""
	})
	for i, d := range all {
		all[i].waiting = d.onDelete == forbidding && slices.Contains(r.path, d.table)
		all[i].own = all[i].waiting && d.table == table
	}
	sortDependants(all)
	rows := make([]rowset.Rows, len(all))
	for i, d := range all {
		rows[i] = d.of(columns, values)
	}
	has, err := Probe(ctx, repo.Of(r.Catalog.Database), r.CheckStop, rows)
	for i := range has {
		switch {
		case has[i] && all[i].onDelete == removed && slices.Contains(r.path, all[i].table):
			plan.takenAlong(rows[i])
		case has[i]:
			some = append(some, all[i])
		}
	}
	return some, err
}

// Probe reports for each of the rows whether some may exist. If one query for all takes too long,
// or a table must not be read, it queries them one by one. Rows that take too long even then may
// exist. Rows that must not be read are an [UnreadableError].
func Probe(
	ctx context.Context, d *repo.Database, checkStop func() error, rows []rowset.Rows,
) ([]bool, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	if err := checkStop(); err != nil {
		return nil, err
	}
	has, err := d.Sweeps.Any(ctx, rows, fencing.Limits{Statement: StatementTime, Lock: LongLockTime})
	if err == nil || !isLockOrTimeout(err) && !fault.Forbidden(err) {
		return has, err
	}
	has = make([]bool, len(rows))
	for i := range rows {
		if err := checkStop(); err != nil {
			return nil, err
		}
		one, err := d.Sweeps.Any(ctx, rows[i:i+1], ProbeLimits())
		if err != nil && !isLockOrTimeout(err) {
			return nil, &UnreadableError{rows[i], err}
		}
		has[i] = err != nil || one[0]
	}
	return has, nil
}

// UnreadableError names the rows that could not be read.
type UnreadableError struct {
	Rows rowset.Rows
	error
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.error }

// Column returns the column of the reference.
func (e *UnreadableError) Column() string {
	return strings.TrimPrefix(e.Rows.String(), e.Rows.Table.Name+".")
}

// isLockOrTimeout reports whether an error is a lock or a timeout.
func isLockOrTimeout(err error) bool {
	class := ClassOf(err, 0, fencing.Limits{})
	return class == dberr.ClassLock || class == dberr.ClassTimeout
}
