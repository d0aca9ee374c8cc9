package catalog

import (
	"errors"
	"regexp"
	"strings"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ParseTable reads a table's name as definitions and commands have it: orders is a table of the
// application schema, and has no Schema; sales.orders is one of the schema sales. A name that itself
// has a dot, or begins with a quote, is written as in SQL: "a.b", or sales."a.b". Case is kept. The
// error says what is wrong with the name.
func ParseTable(name string) (Table, error) {
	var parts []string
	for rest, more := name, true; more; {
		var part string
		var err error
		if part, rest, more, err = nextPart(rest); err != nil {
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
	return Table{}, errors.New(`has more than one dot: put a name that has one in quotes, as in ` +
		`sales."a.b"`)
}

// nextPart takes a part off a name; more: behind it is a dot, and another part.
func nextPart(name string) (part, rest string, more bool, err error) {
	if !strings.HasPrefix(name, `"`) {
		part, rest, more = strings.Cut(name, ".")
		return part, rest, more, nil
	}
	for rest = name[1:]; ; {
		before, behind, closed := strings.Cut(rest, `"`)
		part += before
		switch {
		case !closed:
			return "", "", false, errors.New("begins with a quote that is not closed")
		case behind == "":
			return part, "", false, nil
		case behind[0] == '.':
			return part, behind[1:], true, nil
		case behind[0] != '"':
			return "", "", false, errors.New("has something behind a closing quote that is no dot")
		}
		part, rest = part+`"`, behind[1:]
	}
}

// Written is the name as [ParseTable] reads it.
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

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[\w.,:/@%+=-]+$`)

// Argument is a text as a command that is to be copied into a shell needs it: names that have quotes
// of their own keep them.
func Argument(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// ReferenceArgument is the [Argument] TABLE.COLUMN, with the table as definitions have it.
func ReferenceArgument(table string, columns []string) string {
	names := make([]string, len(columns))
	for i, name := range columns {
		names[i] = name
		if strings.ContainsAny(name, `.,"`) || strings.TrimSpace(name) != name {
			names[i] = stmt.Quote(name)
		}
	}
	return Argument(table + "." + strings.Join(names, ","))
}

// In is the table with the schema that it has where schema is the application's.
func (t Table) In(schema string) Table {
	if t.Schema == "" {
		t.Schema = schema
	}
	return t
}

// Recorded is the name under which deletions from the table are recorded, where schema is the
// application's.
func (t Table) Recorded(schema string) string {
	t = t.In(schema)
	return t.Schema + "." + t.Name
}

// RecordedName is [Table.Recorded] of a name as definitions have it. One that cannot be read is
// taken literally.
func RecordedName(name, schema string) string { return tableNamed(name).Recorded(schema) }

// tableNamed is [ParseTable], but for a name that cannot be read: it is taken literally.
func tableNamed(name string) Table {
	t, err := ParseTable(name)
	if err != nil {
		return Table{Name: name}
	}
	return t
}

// NamedSQL are the relations c, in their schemas n, that have the names w.written of definitions: $1, with
// their schemas $2, empty for the application's, and their names there $3.
const NamedSQL = `(SELECT DISTINCT written, schema, name FROM unnest($1::text[], $2::text[], $3::text[])
  AS w (written, schema, name)) w
JOIN pg_namespace n ON n.nspname = coalesce(nullif(w.schema, ''), current_schema())
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name`

// SplitNames returns $2 and $3 of NamedSQL for the names that definitions have.
func SplitNames(written []string) (schemas, names []string) {
	for _, name := range written {
		t := tableNamed(name)
		schemas, names = append(schemas, t.Schema), append(names, t.Name)
	}
	return schemas, names
}

// RecordedNames are those that records of a table may bear that an operator has named, where schema
// is the application's; nil for "", which is any table.
func RecordedNames(name, schema string) []string {
	if name == "" {
		return nil
	}
	return []string{RecordedName(name, schema), name}
}
