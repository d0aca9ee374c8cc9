package bulk

import (
	"context"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Dependant is a table some rows of which depend on rows of another one, its parent.
type Dependant struct {
	table repo.Table
	// Column names the reference in messages; missing is the one without which nobody knows to what it refers, "" if there
	// is none.
	column, missing string
	// parent are the columns of the parent to which the rows refer.
	parent []repo.Column
	// Rows that refer to these values of the parent's columns.
	rows func(values [][]string) repo.Rows
	fate dependantFate
	// nullify is the change where that is their fate; required is a column of it that is NOT NULL, "" if none is.
	nullify  repo.Change
	required string
	// waiting rows forbid the removal and are of a table on the path: nothing removes them first. own: that table is the
	// parent itself, and rows that are removed together forbid nothing.
	waiting, own bool
}

type dependantFate int

const (
	// removed with what they depend on.
	removed dependantFate = iota
	// nullified: they stay, without their reference.
	nullified
	// forbidding: they are not touched, and must not be there.
	forbidding
)

// TypedReference refers to rows of several tables by a type and an id, without a foreign key.
type TypedReference struct{ Table, ID, Kind string }

// typedReferences are the children without a foreign key, by parent table.
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
		return kind, []TypedReference{{"members", "source_id", "source_type"}, {"routes", "source_id", "source_type"}}
	}
	return kind, []TypedReference{
		{"notes", "noteable_id", "noteable_type"},
		{"award_emoji", "awardable_id", "awardable_type"},
		{"todos", "target_id", "target_type"},
		{"events", "target_id", "target_type"},
		{"subscriptions", "subscribable_id", "subscribable_type"},
	}
}

// UntypedReferences are those of a database whose column of the type is missing: rows that may refer to what is to be removed
// forbid it.
func UntypedReferences(c *repo.Catalog) (untyped []TypedReference) {
	for _, table := range []string{"issues", "notes", "projects"} {
		_, references := typedReferences(table)
		for _, r := range references {
			if t := c.Table(r.Table); t.Has(r.ID) && !t.Has(r.Kind) && !slices.Contains(untyped, r) {
				untyped = append(untyped, r)
			}
		}
	}
	return untyped
}

// outsideColumns name, by table, where the paths are of what removed rows leave outside the database.
func outsideColumns() map[string]string {
	return map[string]string{"snippet_repositories": "disk_path", "project_repositories": "disk_path"}
}

// ForRemoval adds to the tables and columns that a catalogue is asked for those that bounded removal looks for.
func ForRemoval(wanted map[string][]string) map[string][]string {
	for _, table := range []string{"issues", "notes", "projects"} {
		_, references := typedReferences(table)
		for _, r := range references {
			wanted[r.Table] = append(wanted[r.Table], r.ID, r.Kind)
		}
	}
	for table, column := range outsideColumns() {
		wanted[table] = append(wanted[table], column)
	}
	return wanted
}

// deletion is the change of rows that bounded removal ends with.
func deletion(c *repo.Catalog, t repo.Table) repo.Change {
	column := outsideColumns()[t.Name]
	if r := c.Table(t.Name); column == "" || r == nil || r.Table != t || !r.Has(column) {
		column = ""
	}
	return repo.Change{Delete: true, Report: column}
}

// Dependants are all tables that can have rows that depend on rows of this one: those that go first.
func Dependants(c *repo.Catalog, parent repo.Table) (all []Dependant) {
	for _, k := range c.References(parent) {
		d := Dependant{
			table: k.Child, column: k.ColumnNames(), parent: k.ParentColumns, fate: forbidding,
			rows: func(values [][]string) repo.Rows { return c.Children(k, values) },
		}
		switch k.OnDelete {
		case repo.OnDeleteCascade:
			d.fate = removed
		case repo.OnDeleteSetNull:
			d.fate, d.nullify, d.required = nullified, k.Nullify(), k.Required()
		}
		all = append(all, d)
	}
	kind, references := typedReferences(parent.Name)
	for _, r := range references {
		t := c.Table(r.Table)
		if t == nil || t.Schema != parent.Schema || !t.Has(r.ID) {
			continue
		}
		d := Dependant{table: t.Table, column: r.ID, parent: []repo.Column{{Name: "id", Type: "bigint"}}}
		condition := "t." + r.Kind + " = '" + kind + "'"
		if !t.Has(r.Kind) {
			d.fate, d.missing, condition = forbidding, r.Kind, ""
		}
		d.rows = func(values [][]string) repo.Rows {
			rows, _ := c.Rows(r.Table, r.ID, values[0]...)
			rows.Condition = condition
			return rows
		}
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b Dependant) int { return int(a.fate) - int(b.fate) })
	return all
}

// KeyColumns are the columns of a parent that its dependants refer to.
func KeyColumns(all []Dependant) (columns []repo.Column) {
	for _, d := range all {
		for _, c := range d.parent {
			if !slices.ContainsFunc(columns, func(known repo.Column) bool { return known.Name == c.Name }) {
				columns = append(columns, c)
			}
		}
	}
	return columns
}

// of are the rows that refer to rows with these values of the parent's columns.
func (d Dependant) of(columns []repo.Column, values [][]string) repo.Rows {
	own := make([][]string, len(d.parent))
	for i, c := range d.parent {
		own[i] = values[slices.IndexFunc(columns, func(known repo.Column) bool { return known.Name == c.Name })]
	}
	if d.own {
		return d.rows(own).Except(columns, values)
	}
	return d.rows(own)
}

// present are the dependants that have rows, of those that this removal is about. First those that forbid it whatever
// else is removed, so that nothing is in vain.
func (r *Removal) present(ctx context.Context, table repo.Table, columns []repo.Column, values [][]string) ([]Dependant, error) {
	all := slices.DeleteFunc(Dependants(r.Catalog, table), func(d Dependant) bool {
		entered := d.fate == removed && slices.Contains(r.path, d.table)
		return entered || slices.Contains(r.except, d.table.Name) && d.missing == ""
	})
	for i, d := range all {
		all[i].waiting = d.fate == forbidding && slices.Contains(r.path, d.table)
		all[i].own = all[i].waiting && d.table == table
	}
	slices.SortStableFunc(all, func(a, b Dependant) int {
		switch {
		case a.waiting == b.waiting:
			return 0
		case a.waiting:
			return -1
		}
		return 1
	})
	rows := make([]repo.Rows, len(all))
	for i, d := range all {
		rows[i] = d.of(columns, values)
	}
	has, err := Probe(ctx, r.Catalog.Database, r.GoOn, rows)
	if err != nil {
		return nil, err
	}
	var some []Dependant
	for i, d := range all {
		if has[i] {
			some = append(some, d)
		}
	}
	return some, nil
}

// Probe says of each of the rows whether there may be some. Where that cannot be said in time for all of them at once,
// they are asked one by one; what cannot be said even then may be. So they are to find out which may not be asked.
func Probe(ctx context.Context, d *repo.Database, goOn func() error, rows []repo.Rows) ([]bool, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	if err := goOn(); err != nil {
		return nil, err
	}
	has, err := d.Any(ctx, rows, repo.Limits{Statement: StatementTime, Lock: LongLockTime})
	if err == nil || !hinders(err) && !run.Forbidden(err) {
		return has, err
	}
	has = make([]bool, len(rows))
	for i := range rows {
		if err := goOn(); err != nil {
			return nil, err
		}
		one, err := d.Any(ctx, rows[i:i+1], ProbeLimits())
		if err != nil && !hinders(err) {
			return nil, &UnreadableError{rows[i], err}
		}
		has[i] = err != nil || one[0]
	}
	return has, nil
}

// UnreadableError names the rows that could not be looked for.
type UnreadableError struct {
	Rows repo.Rows
	error
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.error }

// Column is that of the reference.
func (e *UnreadableError) Column() string {
	return strings.TrimPrefix(e.Rows.String(), e.Rows.Table.Name+".")
}

// hinders says whether an error is one of locks or time.
func hinders(err error) bool {
	class := ClassOf(err, 0, repo.Limits{})
	return class == repo.ClassLock || class == repo.ClassTimeout
}
