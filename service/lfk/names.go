package lfk

import (
	"context"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

// TableNames are the tables that an unknown name may mean.
type TableNames []admin.NamedTable

// ReadTableNames reads the names of the tables of databases. Databases that do not answer have none,
// because for a hint no error matters.
func ReadTableNames(ctx context.Context, databases []*repo.Database) (names TableNames) {
	for _, d := range databases {
		found, _ := admin.New(d.Database).TableNames(ctx)
		names = append(names, found...)
	}
	return names
}

// maxHints is the maximum number of tables in a hint.
const maxHints = 5

// Hint asks whether a table of another case or schema was meant. Otherwise it asks for the
// table with the most similar name, of any schema if name has none. It also reports a write-protected
// table of that name. It returns "" without a hint.
func (t TableNames) Hint(name string) string {
	wanted, err := catalog.ParseTable(name)
	if err != nil {
		return ""
	}
	var same, others, bare []string
	protected := ""
	for _, table := range t {
		written := table.Written()
		switch equal := strings.EqualFold(table.Name, wanted.Name); {
		case equal && table.Protected:
			protected = "write-protected copies of this table are ignored"
		case table.Protected, slices.Contains(same, written):
		case equal && len(same) < maxHints:
			same = append(same, written)
		default:
			others, bare = append(others, written), append(bare, table.Name)
		}
	}
	if len(same) == 0 {
		near := format.Nearest(name, others)
		i := slices.Index(bare, format.Nearest(name, bare))
		if near == "" && wanted.Schema == "" && i >= 0 {
			near = others[i]
		}
		return format.Join(DidYouMean(near), protected)
	}
	return format.Join(DidYouMean(same...), protected)
}

// DidYouMean asks whether one of the names was meant. It returns "" if they are empty.
func DidYouMean(names ...string) string {
	if text := strings.Join(names, " or "); text != "" {
		return "did you mean " + text + "?"
	}
	return ""
}

// Parenthesized returns a hint to follow a name. It returns "" without a hint.
func Parenthesized(hint string) string {
	if hint == "" {
		return ""
	}
	return " (" + hint + ")"
}
