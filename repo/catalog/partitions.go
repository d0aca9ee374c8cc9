package catalog

import (
	"slices"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Part is a partition of a partitioned table, at the lowest level. Rows are changed where they
// stand, and a position means something within one partition only.
type Part struct {
	Table Table
	Oid   uint32
	// byName: our role may change it by its own name. Else it is reached through the whole table.
	ByName bool
	// keys are the columns that decide on the partition of a row, "" if an expression does.
	Keys []string
}

// Reached is the partition as statements that may change these columns reach it. A change of a key
// may take a row to another partition: only the whole table can do that.
func (p *Part) Reached(columns []Column) *Part {
	reached := *p
	for _, c := range columns {
		if slices.Contains(p.Keys, c.Name) || slices.Contains(p.Keys, "") {
			reached.ByName = false
		}
	}
	return &reached
}

// Condition keeps a statement that names the whole table to the partition.
func (p *Part) Condition(values *stmt.Parameters) string {
	if p == nil || p.ByName {
		return ""
	}
	return "t.tableoid = " + values.Add(p.Oid)
}
