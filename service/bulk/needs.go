package bulk

import (
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
)

// AddRemoval adds what it takes to remove rows of a table with all that depends on them.
func AddRemoval(n *repo.Needs, t repo.Table) {
	n.Add(t, repo.ToRemove)
	if !n.Enter(t) {
		return
	}
	for _, d := range dependantsOf(n.Catalog, t) {
		n.Find(repo.LookUp{Table: d.table, Kind: d.kind, Columns: strings.Split(d.column, ", ")})
		switch {
		case d.onDelete == removed:
			AddRemoval(n, d.table)
		case d.onDelete == nullified && d.required == "":
			n.Add(d.table, repo.ToChange)
		default:
			n.Add(d.table, repo.ToRead)
		}
	}
}

// Forbidding are the foreign keys to a table whose rows keep what they refer to from being removed,
// except those of some columns, as "table.column".
func Forbidding(c *repo.Catalog, t repo.Table, except ...string) (keys []repo.ForeignKey) {
	for _, k := range c.References(t) {
		name := k.Child.Name + "." + k.ColumnNames()
		kept := k.OnDelete != repo.OnDeleteCascade &&
			(k.OnDelete != repo.OnDeleteSetNull || k.Required() != "")
		if kept && !slices.Contains(except, name) {
			keys = append(keys, k)
		}
	}
	return keys
}
