package repo

// Actions of a loose foreign key, in the words of the definitions file.
const (
	AsyncDelete    = "async_delete"
	AsyncNullify   = "async_nullify"
	UpdateColumnTo = "update_column_to"
)

// LooseForeignKey is one definition: what becomes of the rows of Table whose Column refers to a deleted row of Parent. Names are unqualified and literal.
type LooseForeignKey struct {
	Table, Column, Parent string
	// OnDelete is one of the actions above.
	OnDelete string
	// TargetColumn and TargetValue belong to UpdateColumnTo.
	TargetColumn, TargetValue string
	// Conditions narrow the rows: all of them must hold.
	Conditions []ColumnValue
	// DeleteLimit caps the rows of one statement, whatever the action; 0: adaptive.
	DeleteLimit int
}

// ColumnValue is an equality, the value in the text form that PostgreSQL converts to the column's type.
type ColumnValue struct{ Column, Value string }

// String is the definition's identity in messages: "child.column -> parent".
func (k LooseForeignKey) String() string { return k.Table + "." + k.Column + " -> " + k.Parent }

// changes is the column that the action sets; "": rows are deleted.
func (k LooseForeignKey) changes() string {
	switch k.OnDelete {
	case AsyncNullify:
		return k.Column
	case UpdateColumnTo:
		return k.TargetColumn
	}
	return ""
}
