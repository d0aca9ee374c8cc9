package lfk

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// entry is one definition of a definitions file during reading.
type entry struct {
	file *definitionsFile
	// place names the entry in messages: the child table and its index.
	place string
	key   lfk.Definition
	// line is that of the entry, given are the lines of its keys, valid or not.
	line  int
	given map[string]int
}

// entryKeys returns the valid keys of an entry, in the order of the documentation.
func entryKeys() []string {
	return []string{
		"table", "column", "key", "on_delete", "target_column", "target_value", "conditions",
		"delete_limit", "worker_class",
	}
}

// read reports whether the entry is valid. If not, it has recorded why.
func (e *entry) read(node *yaml.Node) bool {
	before := len(e.file.problems)
	e.line, e.given = node.Line, map[string]int{}
	if node.Kind != yaml.MappingNode {
		e.file.problem(node.Line, e.place, "is %s: write a mapping with the keys table, column and on_delete",
			kind(node))
		return false
	}
	for name, value := range e.fields(e.place, node, entryKeys()) {
		e.given[name] = value.Line
		e.field(name, value)
	}
	for _, name := range []string{"table", "column", "on_delete"} {
		if e.given[name] == 0 {
			e.problem(e.line, name, "is required")
		}
	}
	e.checkTarget()
	e.checkKey()
	return len(e.file.problems) == before
}

// problem adds a problem of one key of this entry to those of the file.
func (e *entry) problem(line int, key, format string, args ...any) {
	e.file.problem(line, e.place+"."+key, format, args...)
}

// fields yields the allowed keys of a mapping, each once, and records the others as problems.
func (e *entry) fields(
	place string, node *yaml.Node, allowed []string,
) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		var seen []string
		for name, value := range pairs(node) {
			name = followed(name)
			where := place + "." + name.Value
			switch {
			case name.Tag == "!!merge":
				e.file.problem(name.Line, where, "merge keys are not supported: write the keys out")
			case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" || !slices.Contains(allowed,
				name.Value):
				e.file.problem(name.Line, where, "is an unknown key: use one of %s",
					strings.Join(allowed, ", "))
			case slices.Contains(seen, name.Value):
				e.file.problem(name.Line, where, "occurs twice")
			default:
				seen = append(seen, name.Value)
				if !yield(name.Value, followed(value)) {
					return
				}
			}
		}
	}
}

// field stores the value of one key in the definition. A value of the wrong type is a problem of
// the file. worker_class is checked, but has no effect.
func (e *entry) field(name string, value *yaml.Node) {
	switch name {
	case "table":
		e.key.Parent = e.table(name, value)
	case "column":
		e.key.Columns = e.columns(name, value)
	case "key":
		e.key.Key = e.columns(name, value)
	case "on_delete":
		e.key.OnDelete = e.action(value)
	case "target_column":
		e.key.TargetColumn = e.name(name, value)
	case "target_value":
		e.key.TargetValue = e.value(name, value)
	case "conditions":
		e.key.Conditions = e.conditions(value)
	case "delete_limit":
		e.key.DeleteLimit = e.limit(value)
	case "worker_class":
		// Under any name, one worker runs everything.
		if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
			e.problem(value.Line, name, "is %s: write a string", kind(value))
		}
	}
}

// table reads the name of a table.
func (e *entry) table(key string, value *yaml.Node) string {
	return e.text(key, value, wrongTable)
}

// columns reads one column, or a list of them.
func (e *entry) columns(key string, value *yaml.Node) (names []string) {
	if value.Kind != yaml.SequenceNode {
		return []string{e.name(key, value)}
	}
	if n := len(value.Content); n < 2 || n > lfk.MaxKeyColumns {
		e.problem(value.Line, key, "is a list of length %d: list 2 to %d columns, or write the name of one column", n,
			lfk.MaxKeyColumns)
	}
	for i, item := range value.Content {
		name := e.name(fmt.Sprintf("%s[%d]", key, i), followed(item))
		if slices.Contains(names, name) {
			e.problem(followed(item).Line, key, "has the column %s twice", name)
		}
		names = append(names, name)
	}
	return names
}

// checkKey checks that the columns of a list refer one by one to those of the key.
func (e *entry) checkKey() {
	if e.key.Key != nil && e.key.Columns != nil && len(e.key.Key) != len(e.key.Columns) {
		e.problem(e.given["key"], "key", "has %s, but column has %d: list one key column for each column",
			format.Pluralize(len(e.key.Key), "column"), len(e.key.Columns))
	}
}

// name reads the name of a column.
func (e *entry) name(key string, value *yaml.Node) string {
	return e.text(key, value, wrongName)
}

// text reads a name. wrong returns what is wrong with it, or "".
func (e *entry) text(key string, value *yaml.Node, wrong func(string) string) string {
	if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
		e.problem(value.Line, key, "is %s, but a name must be a string: put the name in quotes", kind(value))
		return ""
	}
	if fault := wrong(value.Value); fault != "" {
		e.problem(value.Line, key, "%s", fault)
	}
	return value.Value
}

// action returns the value of on_delete, or "" with a problem if it is unknown.
func (e *entry) action(value *yaml.Node) string {
	allowed := []string{lfk.AsyncDelete, lfk.AsyncNullify, lfk.UpdateColumnTo}
	if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" || !slices.Contains(allowed,
		value.Value) {
		e.problem(value.Line, "on_delete", "is %s: use one of %s", kind(value), strings.Join(allowed, ", "))
		return ""
	}
	return value.Value
}

// limit returns the value of delete_limit, in rows per statement. Anything but an integer of at
// least 1 is a problem.
func (e *entry) limit(value *yaml.Node) (limit int) {
	if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!int" || value.Decode(&limit) != nil ||
		limit < 1 {
		e.problem(value.Line, "delete_limit", "is %s: write an integer of at least 1", kind(value))
	}
	return limit
}

// value reads a string, integer or boolean as the text that PostgreSQL converts to the column's
// type.
func (e *entry) value(key string, value *yaml.Node) string {
	if value.Kind == yaml.ScalarNode {
		switch tag := value.ShortTag(); tag {
		case "!!str":
			if !strings.ContainsRune(value.Value, 0) {
				return value.Value
			}
		case "!!int", "!!bool":
			var v any
			if err := value.Decode(&v); err == nil {
				return fmt.Sprint(v)
			}
		}
	}
	e.problem(value.Line, key, "is %s: write a string, an integer or a boolean, or put other values in quotes",
		kind(value))
	return ""
}

// conditions returns the pairs of column and value that child rows must match. An empty list and a
// pair without its column or value are problems.
func (e *entry) conditions(list *yaml.Node) (conditions []lfk.ColumnValue) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		e.problem(list.Line, "conditions", "is %s: write a list of at least one mapping with the keys column and "+
			"value", kind(list))
		return nil
	}
	for i, item := range list.Content {
		item, key := followed(item), fmt.Sprintf("conditions[%d]", i)
		if item.Kind != yaml.MappingNode {
			e.problem(item.Line, key, "is %s: write a mapping with the keys column and value", kind(item))
			continue
		}
		var c lfk.ColumnValue
		missing := []string{"column", "value"}
		for name, value := range e.fields(e.place+"."+key, item, []string{"column", "value"}) {
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
			if name == "column" {
				c.Column = e.name(key+".column", value)
			} else {
				c.Value = e.value(key+".value", value)
			}
		}
		for _, m := range missing {
			e.problem(item.Line, key+"."+m, "is required")
		}
		conditions = append(conditions, c)
	}
	return conditions
}

// checkTarget checks that the target keys belong to one action, and that both are given.
func (e *entry) checkTarget() {
	for _, name := range []string{"target_column", "target_value"} {
		line := e.given[name]
		switch {
		case line > 0 && e.key.OnDelete != lfk.UpdateColumnTo && e.key.OnDelete != "":
			e.problem(line, name, "is allowed only with on_delete: %s", lfk.UpdateColumnTo)
		case line == 0 && e.key.OnDelete == lfk.UpdateColumnTo:
			e.problem(e.line, name, "is required with on_delete: %s", lfk.UpdateColumnTo)
		}
	}
}
