package bulk

import (
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo/catalog"
)

// AddRemoval adds the needs of removing rows of a table with all dependants.
func AddRemoval(n *catalog.Needs, t catalog.Table) {
	n.Add(t, catalog.ToRemove)
	if !n.Enter(t) {
		return
	}
	for _, d := range dependantsOf(n.Catalog, t) {
		n.Find(catalog.Lookup{Table: d.table, Kind: d.kind, Columns: strings.Split(d.column, ", ")})
		switch {
		case d.onDelete == removed:
			AddRemoval(n, d.table)
		case d.onDelete == nullified && d.required == "":
			n.Add(d.table, catalog.ToChange)
		default:
			n.Add(d.table, catalog.ToRead)
		}
	}
}

// Forbidding returns the foreign keys to a table whose rows prevent a removal, except those of some
// columns, as "table.column".
func Forbidding(c *catalog.Catalog, t catalog.Table, except ...string) (keys []catalog.ForeignKey) {
	for _, k := range c.References(t) {
		name := k.Child.Name + "." + k.ColumnNames()
		kept := k.OnDelete != catalog.OnDeleteCascade &&
			(k.OnDelete != catalog.OnDeleteSetNull || k.Required() != "")
		if kept && !slices.Contains(except, name) {
			keys = append(keys, k)
		}
	}
	return keys
}
