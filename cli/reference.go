package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
)

// reference is TABLE.COLUMN, or TABLE.COLUMN,COLUMN, as arguments have it. Each name may be quoted as
// PostgreSQL quotes: "Price.List"."Customer.Id".
type reference struct {
	table   string
	columns []string
}

func parseReference(argument string) (reference, error) {
	parts := outsideQuotes(argument, '.')
	last := len(parts) - 1
	r := reference{table: strings.Join(parts[:last], ".")}
	for _, name := range outsideQuotes(parts[last], ',') {
		name = strings.TrimSpace(name)
		if n := len(name); n > 1 && name[0] == '"' && name[n-1] == '"' {
			name = strings.ReplaceAll(name[1:n-1], `""`, `"`)
		}
		r.columns = append(r.columns, name)
	}
	if r.table == "" || slices.Contains(r.columns, "") {
		return r, usage(fmt.Errorf("%s: write TABLE.COLUMN, or TABLE.COLUMN,COLUMN for a key "+
			"of several columns", argument))
	}
	// As definitions have it: "orders" is orders.
	if table, err := repo.ParseTable(r.table); err == nil {
		r.table = table.Written()
	}
	return r, nil
}

// outsideQuotes splits a text at a separator that stands outside of double quotes.
func outsideQuotes(text string, separator rune) []string {
	quoted, from := false, 0
	var parts []string
	for i, c := range text {
		if c == '"' {
			quoted = !quoted
		}
		if c == separator && !quoted {
			parts, from = append(parts, text[from:i]), i+1
		}
	}
	return append(parts, text[from:])
}

// of reports whether a definition is of these columns.
func (r reference) of(key repo.LooseForeignKey) bool {
	return key.Table == r.table && slices.Equal(key.Columns, r.columns)
}
