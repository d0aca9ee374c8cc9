package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Not every version of the application has every table and column. A worker names the ones it
// requires. The remaining ones are skipped: their step is left out, and an option replaces them in
// a statement.

// Reference is a column of a table.
type Reference struct{ Table, Column string }

// ReferencesOf takes pairs of a table and its columns.
func ReferencesOf(pairs ...string) (references []Reference) {
	for i := 0; i < len(pairs); i += 2 {
		for column := range strings.FieldsSeq(pairs[i+1]) {
			references = append(references, Reference{pairs[i], column})
		}
	}
	return references
}

// Option is an optional column of a statement: its placeholder stands for here if the column
// exists, else for otherwise.
type Option struct {
	Column          Reference
	Placeholder     string
	Here, Otherwise string
}

// ValueOption is an option for the value of a column, "{alias.column}".
func ValueOption(table, alias, column, otherwise string) Option {
	name := alias + "." + column
	return Option{Reference{table, column}, "{" + name + "}", name, otherwise}
}

// TouchOption is an option that sets the time of a row's change after other changes:
// "{table.touched}".
func TouchOption(table, now string) Option {
	return Option{Reference{table, "updated_at"}, "{" + table + ".touched}", ", updated_at = " + now, ""}
}

// UtcNow is the current time for columns of type timestamp.
const UtcNow = "now() AT TIME ZONE 'UTC'"

// NewestSettings selects the row of application_settings that counts.
func NewestSettings() Option {
	return Option{Reference{"application_settings", "id"}, "{settings.newest}", "ORDER BY id DESC", ""}
}

// Presence holds which of the requested columns a database has.
type Presence struct {
	*Catalog
	// Fillings put the options into statements.
	Fillings []string
	// MissingOptional names the missing columns, for the log.
	MissingOptional string
}

// Present reads which of the columns, and of the columns of options, a database has. If our role
// cannot read a table, the error is [dberr.ErrForbidden].
func Present(
	ctx context.Context, d *pg.Database, columns []Reference, options ...Option,
) (p Presence, err error) {
	columns = slices.Clone(columns)
	for _, o := range options {
		columns = append(columns, o.Column)
	}
	if p.Catalog, err = NewSchema(d).Tables(ctx, TablesOf(columns)); err != nil {
		return p, err
	}
	for _, o := range options {
		filling := o.Otherwise
		if p.Has(o.Column) {
			filling = o.Here
		}
		p.Fillings = append(p.Fillings, o.Placeholder, filling)
	}
	var missing []string
	for _, c := range columns {
		name := c.Table
		if p.Table(c.Table) != nil {
			name += "." + c.Column
		}
		if !p.Has(c) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	p.MissingOptional = strings.Join(missing, ", ")
	return p, nil
}

// Has reports whether the database has all these columns.
func (p Presence) Has(columns ...Reference) bool {
	return !slices.ContainsFunc(columns, func(c Reference) bool { return !p.Table(c.Table).Has(c.Column) })
}

// Missing explains which of the essential columns is missing, "" if none is.
func (p Presence) Missing(ctx context.Context, essential ...Reference) string {
	for _, c := range essential {
		switch {
		case p.Table(c.Table) == nil:
			return pg.ExplainMissing(ctx, p.Database, fmt.Sprintf("database %s has no table %s in the application schema "+
				"(expected if GitLab does not use this database)", p.Database.Name, c.Table))
		case !p.Has(c):
			return pg.ExplainMissing(ctx, p.Database, fmt.Sprintf("database %s has no column %s in table %s",
				p.Database.Name, c.Column, c.Table))
		}
	}
	return ""
}

// HoldsSQL is true if a column of type t can hold {value}, a string constant: a text can, and an
// enum that lists it.
const HoldsSQL = `(t.typcategory = 'S' OR EXISTS (
    SELECT FROM pg_enum e WHERE e.enumtypid IN (t.oid, t.typbasetype) AND e.enumlabel = {value}))`

const typeHoldsSQL = `SELECT ` + HoldsSQL + ` FROM pg_type t WHERE t.oid = $1::text::regtype`

// Unsuitable explains that an essential column cannot hold a value, "" if it can, or is missing.
func (p Presence) Unsuitable(ctx context.Context, c Reference, value string) (string, error) {
	column, _ := p.Table(c.Table).Column(c.Column)
	if slices.Contains([]string{"", "text", "character varying"}, column.Type) {
		return "", nil
	}
	holds, operation := false, "read the type of "+c.Table+"."+c.Column
	sql := stmt.Fill(typeHoldsSQL, "{value}", "$2")
	err := pg.QueryRow(ctx, p.Database, operation, []any{&holds}, sql, column.Type, value)
	if err != nil || holds {
		return "", err
	}
	return fmt.Sprintf("column %s.%s of database %s has type %s, which cannot hold '%s': "+
		"change the column to text, or to an enum with this value", c.Table, c.Column, p.Database.Name, column.Type, value), nil
}

// TablesOf groups columns by table, to request them from a catalogue.
func TablesOf(columns []Reference) map[string][]string {
	wanted := map[string][]string{}
	for _, c := range columns {
		wanted[c.Table] = append(wanted[c.Table], c.Column)
	}
	return wanted
}

// Containing returns the catalogue of the database that contains a table. That is the named database if
// it is configured and has the table, else main, the first. The result is nil if no database has
// the table.
func Containing(catalogs []*Catalog, database, table string) *Catalog {
	for _, c := range catalogs {
		if c.Database.Name == database && c.Table(table) != nil {
			return c
		}
	}
	if catalogs[0].Table(table) == nil {
		return nil
	}
	return catalogs[0]
}
