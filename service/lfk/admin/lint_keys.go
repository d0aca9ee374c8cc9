package admin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// Kinds of columns, as in messages.
const (
	integerKinds = "smallint, integer and bigint"
	allKinds     = "smallint, integer, bigint, uuid, text, varchar and char"
)

// keyType reports a key that its trigger cannot record, or that no trigger could.
func (l *lint) keyType(d lfk.Inspected, at spot, parent admin.Parent) {
	tracked := slices.ContainsFunc(parent.Relations,
		func(r admin.Relation) bool { return r.Trigger != nil && !r.Trigger.Idle })
	if len(parent.Columns) < len(parent.Key) {
		if tracked {
			at.fail("key_type", "deletions fail, because the trigger records the column %s, "+
				"which does not exist: run `caretaker lfk untrack %s`. If the column was renamed, then run "+
				"`caretaker lfk track %[2]s --column` with the new column names, in the same order as "+
				"%s", missingColumn(parent), format.Argument(at.object),
				strings.Join(parent.Key, ","))
		}
		return
	}
	for _, c := range parent.Columns {
		switch asInteger := tracked && !parent.Values; {
		case c.Class == "":
			at.fail("key_type", "key %s is of type %s, but only %s can be recorded: remove the definitions for "+
				"this parent", c.Name, c.Exact, recordable(d))
		case c.Class == repo.ClassInteger:
		case !ownQueue(d):
			at.fail("key_type", "key %s is of type %s, but only %s can be recorded in GitLab's queue: remove the "+
				"definitions for this parent", c.Name, c.Exact, integerKinds)
		case asInteger:
			at.fail("key_type", "deletions fail, because key %s is of type %s, which the trigger "+
				"cannot record: run `caretaker lfk untrack %s`, then track the table again", c.Name, c.Exact,
				format.Argument(at.object))
		}
	}
}

// recordable returns the types that a queue accepts.
func recordable(d lfk.Inspected) string {
	if ownQueue(d) {
		return allKinds
	}
	return integerKinds
}

// ownQueue reports whether a database has a queue of our own, or none yet.
func ownQueue(d lfk.Inspected) bool { return d.Queue.Managed || !d.Queue.Exists }

// missingColumn returns the first column of the key that is missing from the table.
func missingColumn(parent admin.Parent) string {
	for i, name := range parent.Key {
		if i >= len(parent.Columns) || parent.Columns[i].Name != name {
			return name
		}
	}
	return ""
}

// needsValues reports whether a definition's parent in a database has a key that is not one integer.
func (l *lint) needsValues(d lfk.Inspected) bool {
	return slices.ContainsFunc(l.Keys, func(key lfkrepo.Definition) bool {
		parent, here := d.Parents[key.Parent]
		return here && (len(parent.Key) > 1 ||
			slices.ContainsFunc(parent.Columns, func(c catalog.KeyColumn) bool {
				return c.Class != repo.ClassInteger
			}))
	})
}

// recordedKey returns the key of a definition's parent: the columns that the definition's refer to,
// one by one. Nil: no database has the parent, or its key differs from the definition's.
func (l *lint) recordedKey(key lfkrepo.Definition) (columns []catalog.KeyColumn) {
	for _, d := range l.Seen {
		parent, here := d.Parents[key.Parent]
		places, err := key.Places(parent.Key)
		if !here || err != nil || len(parent.Columns) != len(key.Columns) ||
			parent.Tracked() && !parent.Values && parent.Columns[0].Class != repo.ClassInteger {
			continue
		}
		for _, place := range places {
			columns = append(columns, parent.Columns[place])
		}
		return columns
	}
	return nil
}

// keyFaults reports definitions whose key differs from the recorded key of their parent.
func (l *lint) keyFaults(d lfk.Inspected) {
	for _, key := range l.Keys {
		parent, here := d.Parents[key.Parent]
		if !here || !parent.Tracked() || parent.PartitionOf != "" {
			continue
		}
		if _, err := key.Places(parent.Key); err != nil {
			l.at(d.Name, key.String()).fail("key_mismatch", "%s: correct the columns in the definition, or use "+
				"--column to track %s by other columns", err, key.Parent)
			continue
		}
		for i, column := range key.Columns {
			if at := slices.Index(parent.Key, column); key.Key == nil && at >= 0 && at != i {
				l.at(d.Name, key.String()).warn("key_order", "column %s refers to %s of %s, although %[3]s also "+
					"has a column %[1]s: list the columns in the same order as the key %[4]s, or set key to the "+
					"referenced columns",
					column, parent.Key[i], key.Parent, lfkrepo.ColumnList(parent.Key))
				break
			}
		}
	}
}

// mismatches returns the columns of the child that cannot be compared with those of the recorded
// key. If that is unknown, it returns those that can be compared with no possible key.
func (l *lint) mismatches(key lfkrepo.Definition, child *admin.Child) (mismatches []string) {
	recorded := l.recordedKey(key)
	for i, column := range child.Columns {
		kinds, of := allKinds, "a deleted row"
		switch {
		case recorded == nil && column.Class != "",
			recorded != nil && column.Class != "" && recorded[i].Class == column.Class:
			continue
		case i < len(recorded) && recorded[i].Class == repo.ClassInteger:
			kinds = integerKinds
		case i < len(recorded):
			kinds, of = recorded[i].Exact, recorded[i].Name+" of "+key.Parent
		}
		kind := "is of type " + column.Exact
		text := column.Exact == "text" || strings.HasPrefix(column.Exact, "character")
		if text && column.Class == "" && kinds != integerKinds {
			kind = "has a collation that treats different texts as equal"
			kinds += " with a deterministic collation"
		}
		mismatches = append(mismatches, fmt.Sprintf("%s %s, but only %s can refer to %s", column.Name, kind, kinds, of))
	}
	return mismatches
}
