package repo

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Not every version of the application has every table and column. What a worker cannot do without
// it names; the rest is skipped: a step that is about it is left out, and in a statement an
// option takes its place.

// Reference is a column of a table.
type Reference struct{ Table, Column string }

// referencesOf takes pairs of a table and its columns.
func referencesOf(pairs ...string) (references []Reference) {
	for i := 0; i < len(pairs); i += 2 {
		for column := range strings.FieldsSeq(pairs[i+1]) {
			references = append(references, Reference{pairs[i], column})
		}
	}
	return references
}

// option is a column that a statement can do without: its placeholder stands for here where the
// column is there, else for otherwise.
type option struct {
	column          Reference
	placeholder     string
	here, otherwise string
}

// valueOption is an option for the value of a column, "{alias.column}".
func valueOption(table, alias, column, otherwise string) option {
	name := alias + "." + column
	return option{Reference{table, column}, "{" + name + "}", name, otherwise}
}

// touchOption is an option for noting, behind other changes of a row, when it was changed:
// "{table.touched}".
func touchOption(table, now string) option {
	return option{Reference{table, "updated_at"}, "{" + table + ".touched}", ", updated_at = " + now, ""}
}

// utcNow is the time as columns of type timestamp have it.
const utcNow = "now() AT TIME ZONE 'UTC'"

// newestSettings is the row of application_settings that counts.
func newestSettings() option {
	return option{Reference{"application_settings", "id"}, "{settings.newest}", "ORDER BY id DESC", ""}
}

// presence is what a database has of the columns that were asked for.
type presence struct {
	*Catalog
	// fillings put the options into statements.
	fillings []string
	// missingOptional names what is missing, for the log.
	missingOptional string
}

// presence looks for columns, and for those of options. A table that we may not read is
// [ErrForbidden].
func (d *Database) presence(
	ctx context.Context, columns []Reference, options ...option,
) (p presence, err error) {
	columns = slices.Clone(columns)
	for _, o := range options {
		columns = append(columns, o.column)
	}
	if p.Catalog, err = d.Tables(ctx, tablesOf(columns)); err != nil {
		return p, err
	}
	for _, o := range options {
		filling := o.otherwise
		if p.has(o.column) {
			filling = o.here
		}
		p.fillings = append(p.fillings, o.placeholder, filling)
	}
	var missing []string
	for _, c := range columns {
		name := c.Table
		if p.Table(c.Table) != nil {
			name += "." + c.Column
		}
		if !p.has(c) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	p.missingOptional = strings.Join(missing, ", ")
	return p, nil
}

func (p presence) has(columns ...Reference) bool {
	return !slices.ContainsFunc(columns, func(c Reference) bool { return !p.Table(c.Table).Has(c.Column) })
}

// missing says which of the essential columns is not here, "" if all are.
func (p presence) missing(ctx context.Context, essential ...Reference) string {
	for _, c := range essential {
		switch {
		case p.Table(c.Table) == nil:
			return p.Database.orMoved(ctx, fmt.Sprintf("database %s has no table %s in the application schema, which "+
				"is fine without GitLab", p.Database.Name, c.Table))
		case !p.has(c):
			return p.Database.orMoved(ctx, fmt.Sprintf("database %s has no column %s in its table %s",
				p.Database.Name, c.Column, c.Table))
		}
	}
	return ""
}

// holdsSQL reports whether a column of type t can hold {value}, a string constant: a text can, and
// an enum that lists it.
const holdsSQL = `(t.typcategory = 'S' OR EXISTS (
    SELECT FROM pg_enum e WHERE e.enumtypid IN (t.oid, t.typbasetype) AND e.enumlabel = {value}))`

const typeHoldsSQL = `SELECT ` + holdsSQL + ` FROM pg_type t WHERE t.oid = $1::text::regtype`

// unsuitable says that an essential column cannot hold a value, "" if it can, or is not here.
func (p presence) unsuitable(ctx context.Context, c Reference, value string) (string, error) {
	column, _ := p.Table(c.Table).Column(c.Column)
	if slices.Contains([]string{"", "text", "character varying"}, column.Type) {
		return "", nil
	}
	holds, operation := false, "look at the type of "+c.Table+"."+c.Column
	sql := fill(typeHoldsSQL, "{value}", "$2")
	err := p.Database.queryRow(ctx, operation, []any{&holds}, sql, column.Type, value)
	if err != nil || holds {
		return "", err
	}
	return fmt.Sprintf("%s.%s of database %s has the type %s, which has no '%s': "+
		"make it a text, or an enum that has it", c.Table, c.Column, p.Database.Name, column.Type, value), nil
}

// tablesOf are columns as a catalogue is asked for them.
func tablesOf(columns []Reference) map[string][]string {
	wanted := map[string][]string{}
	for _, c := range columns {
		wanted[c.Table] = append(wanted[c.Table], c.Column)
	}
	return wanted
}

// Home is where a table of a database is: in that database, if it is configured and has it, else in
// main, whose catalogue is the first; nil if it is nowhere.
func Home(catalogs []*Catalog, database, table string) *Catalog {
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
