package loosefk

import (
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
)

// missing reports tables that are in no configured database.
func (l *lint) missing() {
	if !l.complete {
		return
	}
	parents := map[string]bool{}
	for i, key := range l.keys {
		parent := slices.ContainsFunc(l.databases, func(d inspected) bool { return hasParent(d, key.Parent) })
		if !parent && !parents[key.Parent] {
			parents[key.Parent] = true
			l.add(SeverityWarning, "parent_missing", "", key.Parent, "is in no configured database: its definitions get no records")
		}
		switch {
		case l.found(i):
		case accepts(l.accepted, key.Table):
			l.add(SeverityWarning, "child_absent", "", key.String(),
				"%s is in no configured database, which was accepted: the definition is skipped until a run finds the table", key.Table)
		default:
			l.add(SeverityError, "child_missing", "", key.String(),
				"%s is in no configured database, so records of %s are held: configure the database that has it, or, if there is none, run `caretaker lfk accept-absent %[1]s`",
				key.Table, key.Parent)
		}
	}
}

func hasParent(d inspected, parent string) bool {
	_, here := d.Parents[parent]
	return here
}

// found says whether the child of a definition, the i-th, is in a database that was looked at.
func (l *lint) found(i int) bool {
	return slices.ContainsFunc(l.databases, func(d inspected) bool { return d.Children[i] != nil })
}

// served says whether a parent has definitions: one all of whose children are accepted as absent counts as one without.
func (l *lint) served(parent string) bool {
	for i, key := range l.keys {
		if key.Parent == parent && (l.found(i) || !accepts(l.accepted, key.Table)) {
			return true
		}
	}
	return false
}

// acceptedOf are the children of a parent that were accepted as absent.
func (l *lint) acceptedOf(parent string) (children []string) {
	for _, key := range l.keys {
		if key.Parent == parent && accepts(l.accepted, key.Table) && !slices.Contains(children, key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}

func revokeCommand(children []string) string {
	return "`caretaker lfk accept-absent --revoke " + strings.Join(children, " ") + "`"
}

// cleaned says whether a parent has a definition with a child to be cleaned, or one that may be in a database that was not
// looked at. Before it is known that there is one, nothing has to feed the queue.
func (l *lint) cleaned(parent string) bool {
	for i, key := range l.keys {
		if key.Parent == parent && (l.found(i) || !l.complete && !accepts(l.accepted, key.Table)) {
			return true
		}
	}
	return false
}

// foreignKeys reports real foreign keys that keep definitions from deleting rows, or that leave them nothing to do.
func (l *lint) foreignKeys(d inspected) {
	for _, f := range d.ForeignKeys {
		if key := l.definition(d, func(k repo.LooseForeignKey) bool {
			return f.Blocks && k.Table == f.Parent && k.OnDelete == repo.AsyncDelete
		}); key != nil {
			l.add(SeverityError, "fk_blocks_deletion", d.name, f.String(),
				"rows of %s that it refers to cannot be deleted by %s (23503): "+
					"give it ON DELETE CASCADE or SET NULL, or replace it by a definition", f.Parent, key)
		}
		if key := l.definition(d, func(k repo.LooseForeignKey) bool {
			return k.Table == f.Child && k.Parent == f.Parent && slices.Contains(f.Columns, k.Column)
		}); key != nil {
			l.add(SeverityWarning, "fk_beside_definition", d.name, f.String(),
				"is a real foreign key beside %s, which finds nothing to do as long as it is there: drop one of the two", key)
		}
	}
}

// definition is the first of its kind whose child is in a database; nil: none.
func (l *lint) definition(d inspected, is func(repo.LooseForeignKey) bool) *repo.LooseForeignKey {
	for i, key := range l.keys {
		if d.Children[i] != nil && is(key) {
			return &key
		}
	}
	return nil
}
