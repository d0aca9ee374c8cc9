package catalog

import (
	"slices"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Part is a partition of a partitioned table, at the lowest level. Changed rows stay where they
// are, and a position has a meaning within one partition only.
type Part struct {
	Table Table
	Oid   uint32
	// ByName: our role may change it by its own name. Otherwise it is reached through the whole table.
	ByName bool
	// Keys are the columns that decide the partition of a row, "" for an expression.
	Keys []string
}

// Reached returns the partition for statements that may change these columns. Changing a key may
// move a row to another partition, which requires the whole table.
func (p *Part) Reached(columns []Column) *Part {
	reached := *p
	for _, c := range columns {
		if slices.Contains(p.Keys, c.Name) || slices.Contains(p.Keys, "") {
			reached.ByName = false
		}
	}
	return &reached
}

// Condition restricts a statement that names the whole table to the partition.
func (p *Part) Condition(values *stmt.Parameters) string {
	if p == nil || p.ByName {
		return ""
	}
	return "t.tableoid = " + values.Add(p.Oid)
}
