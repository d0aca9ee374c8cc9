package catalog

import (
	"errors"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ParseTable parses a table's name from a definition or command. orders is a table of the
// application schema, and has no Schema. sales.orders is a table of the schema sales. A name that
// contains a dot, or begins with a quote, is written as in SQL: "a.b", or sales."a.b". Case is
// kept. The error explains what is wrong with the name.
func ParseTable(name string) (Table, error) {
	var parts []string
	for remaining, more := name, true; more; {
		var part string
		var err error
		if part, remaining, more, err = nextPart(remaining); err != nil {
			return Table{}, err
		}
		parts = append(parts, part)
	}
	switch len(parts) {
	case 1:
		return Table{Name: parts[0]}, nil
	case 2:
		return Table{Schema: parts[0], Name: parts[1]}, nil
	}
	return Table{}, errors.New(`has more than one dot: quote the part that contains a dot, as in ` +
		`sales."a.b"`)
}

// nextPart splits a part off a name. more: a dot and another part follow.
func nextPart(name string) (part, remaining string, more bool, err error) {
	if !strings.HasPrefix(name, `"`) {
		part, remaining, more = strings.Cut(name, ".")
		return part, remaining, more, nil
	}
	for remaining = name[1:]; ; {
		before, after, closed := strings.Cut(remaining, `"`)
		part += before
		switch {
		case !closed:
			return "", "", false, errors.New("begins with a quote that is not closed")
		case after == "":
			return part, "", false, nil
		case after[0] == '.':
			return part, after[1:], true, nil
		case after[0] != '"':
			return "", "", false, errors.New("has no dot after a closing quote")
		}
		part, remaining = part+`"`, after[1:]
	}
}

// Written returns the name as [ParseTable] reads it.
func (t Table) Written() string {
	if t.Schema == "" {
		return written(t.Name)
	}
	return written(t.Schema) + "." + written(t.Name)
}

func written(name string) string {
	if strings.Contains(name, ".") || strings.HasPrefix(name, `"`) {
		return stmt.Quote(name)
	}
	return name
}

// ReferenceArgument returns the [format.Argument] TABLE.COLUMN, with the table named as in definitions.
func ReferenceArgument(table string, columns []string) string {
	names := make([]string, len(columns))
	for i, name := range columns {
		names[i] = name
		if strings.ContainsAny(name, `.,"`) || strings.TrimSpace(name) != name {
			names[i] = stmt.Quote(name)
		}
	}
	return format.Argument(table + "." + strings.Join(names, ","))
}

// In returns the table with its schema, where schema is the application's.
func (t Table) In(schema string) Table {
	if t.Schema == "" {
		t.Schema = schema
	}
	return t
}

// Recorded returns the name under which deletions from the table are recorded, where schema is the
// application's.
func (t Table) Recorded(schema string) string {
	t = t.In(schema)
	return t.Schema + "." + t.Name
}

// RecordedName is [Table.Recorded] of a name in definitions. A name that cannot be parsed is taken
// literally.
func RecordedName(name, schema string) string { return tableNamed(name).Recorded(schema) }

// tableNamed is [ParseTable], except that a name that cannot be parsed is taken literally.
func tableNamed(name string) Table {
	t, err := ParseTable(name)
	if err != nil {
		return Table{Name: name}
	}
	return t
}

// NamedSQL are the relations c, in their schemas n, that have the names w.written of definitions
// ($1). $2 are their schemas, empty for the application's, and $3 their names there.
const NamedSQL = `(SELECT DISTINCT written, schema, name FROM unnest($1::text[], $2::text[], $3::text[])
  AS w (written, schema, name)) w
JOIN pg_namespace n ON n.nspname = coalesce(nullif(w.schema, ''), current_schema())
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name`

// SplitNames returns $2 and $3 of NamedSQL for the names in definitions.
func SplitNames(written []string) (schemas, names []string) {
	for _, name := range written {
		t := tableNamed(name)
		schemas, names = append(schemas, t.Schema), append(names, t.Name)
	}
	return schemas, names
}

// RecordedNames returns the names that records of the operator's table may have, where schema is
// the application's. It returns nil for "", which means any table.
func RecordedNames(name, schema string) []string {
	if name == "" {
		return nil
	}
	return []string{RecordedName(name, schema), name}
}
