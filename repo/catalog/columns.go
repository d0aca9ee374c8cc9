package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ComparedAs returns the type of the values that are compared with the column. A reference may be
// narrower than the id, and an index on any integer finds a bigint.
func (c Column) ComparedAs() string {
	if slices.Contains([]string{"integer", "smallint"}, c.Type) {
		return "bigint"
	}
	return c.Type
}

// Value adds a parameter for comparison with the column. Integers are sent as they are: a cast from
// text would be evaluated for every row.
func (c Column) Value(text string, p *stmt.Parameters) string {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && c.ComparedAs() == "bigint" {
		return p.Add(n) + "::bigint"
	}
	return p.Add(text) + "::text::" + c.Type
}

// Array reports whether the values of the column are arrays.
func (c Column) Array() bool { return strings.HasSuffix(c.Type, "[]") }

// List adds a parameter for several values. Arrays stay texts, which [Column.Listed] casts: arrays
// of arrays cannot differ in length, and unnest splits two dimensions into elements.
func (c Column) List(values []string, p *stmt.Parameters) string {
	if c.Array() {
		return p.List(values) + "::text[]"
	}
	return fmt.Sprintf("%s::text[]::%s[]", p.List(values), c.ComparedAs())
}

// Listed returns the value of a list that unnest calls name.
func (c Column) Listed(name string) string {
	if c.Array() {
		return name + "::" + c.Type
	}
	return name
}
