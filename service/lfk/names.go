package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

// tableNames are the tables that an unknown name may mean.
type tableNames []admin.NamedTable

// tables reads the names of the tables of the selected databases. For a hint no error matters.
func (l Admin) tables(ctx context.Context) (names tableNames) {
	_ = l.each(ctx, func(d *repo.Database) error {
		found, err := admin.New(d.Database).TableNames(ctx)
		names = append(names, found...)
		return err
	})
	return names
}

// maxHints is the maximum number of tables in a hint.
const maxHints = 5

// hint asks whether a table of another case or schema was meant, or else the table with the most
// similar name. It also reports a write-protected table of that name. It returns "" without a hint.
func (t tableNames) hint(name string) string {
	wanted, err := catalog.ParseTable(name)
	if err != nil {
		return ""
	}
	var same, others []string
	protected := ""
	for _, table := range t {
		written := table.Written()
		switch equal := strings.EqualFold(table.Name, wanted.Name); {
		case equal && table.Protected:
			protected = "write-protected leftovers do not count"
		case table.Protected, slices.Contains(same, written):
		case equal && len(same) < maxHints:
			same = append(same, written)
		default:
			others = append(others, written)
		}
	}
	if len(same) == 0 {
		return format.Join(didYouMean(format.Nearest(name, others)), protected)
	}
	return format.Join(didYouMean(same...), protected)
}

// didYouMean asks whether one of the names was meant. It returns "" if they are empty.
func didYouMean(names ...string) string {
	if text := strings.Join(names, " or "); text != "" {
		return "did you mean " + text + "?"
	}
	return ""
}

// parenthesized returns a hint to follow a name. It returns "" without a hint.
func parenthesized(hint string) string {
	if hint == "" {
		return ""
	}
	return " (" + hint + ")"
}
