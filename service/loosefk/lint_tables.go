package loosefk

import (
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
	"github.com/caretaker-go/caretaker/service/run"
)

// missing reports tables that are in no configured database.
func (l *lint) missing() {
	if !l.complete {
		return
	}
	parents := map[string]bool{}
	for i, key := range l.keys {
		parent := slices.ContainsFunc(l.databases, func(d inspected) bool {
			_, ok := d.Parents[key.Parent]
			return ok
		})
		if !parent && !parents[key.Parent] {
			parents[key.Parent] = true
			l.at("", key.Parent).warn("parent_missing",
				"is in no configured database: its definitions get no records")
		}
		switch {
		case l.found(i):
		case l.others[key.Table] != "":
			l.at("", key.String()).fail("child_no_table", "%s. Records of %s are held", l.others[key.Table], key.Parent)
		case accepts(l.accepted, key.Table):
			l.at("", key.String()).warn("child_absent", "%s is in no configured database, which was "+
				"accepted: the definition is skipped until a run finds the table", key.Table)
		default:
			l.at("", key.String()).fail("child_missing", "%s is in no configured database, so records of "+
				"%s are held: configure the database that has it, or, if there is none, "+
				"run `caretaker lfk accept-absent %s`", key.Table, key.Parent, repo.Argument(key.Table))
		}
	}
}

// shared reports definitions whose parent and child are in several databases: a record of one is
// applied in all. With GitLab's queue that is as it should be: its databases have copies of tables.
func (l *lint) shared() {
	for i, key := range l.keys {
		var tracked, children []string
		for _, d := range l.databases {
			if d.Queue.Managed && d.Parents[key.Parent].Tracked() {
				tracked = append(tracked, d.name)
			}
			if d.Children[i] != nil {
				children = append(children, d.name)
			}
		}
		if len(tracked) > 1 && len(children) > 1 {
			l.at("", key.String()).warn("key_in_several_databases", "%s is tracked in %s, and each deletion "+
				"is carried out in all that have %s: %s. Make sure that no key of %[1]s is used in two "+
				"databases", key.Parent, run.SomeNames(tracked), key.Table,
				run.SomeNames(children))
		}
	}
}

// found says whether the child of a definition, the i-th, is in a database that was inspected.
func (l *lint) found(i int) bool {
	return slices.ContainsFunc(l.databases, func(d inspected) bool { return d.Children[i] != nil })
}

// is says whether a definition's name of a table is that of a recorded one.
func (d inspected) is(name, recorded string) bool {
	return repo.RecordedName(name, d.Queue.Schema) == recorded
}

// served says whether a parent, by its recorded name, has definitions: one all of whose children are
// accepted as absent counts as one without.
func (l *lint) served(d inspected, recorded string) bool {
	for i, key := range l.keys {
		if d.is(key.Parent, recorded) && (l.found(i) || !accepts(l.accepted, key.Table)) {
			return true
		}
	}
	return false
}

// acceptedOf are the children of a parent, by its recorded name, that were accepted as absent.
func (l *lint) acceptedOf(d inspected, recorded string) (children []string) {
	for _, key := range l.keys {
		if d.is(key.Parent, recorded) && accepts(l.accepted, key.Table) && !slices.Contains(children,
			key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}

func revokeCommand(children []string) string {
	arguments := make([]string, len(children))
	for i, child := range children {
		arguments[i] = repo.Argument(child)
	}
	return "`caretaker lfk accept-absent --revoke " + strings.Join(arguments, " ") + "`"
}

// cleaned says whether a parent, by its recorded name, has a definition with a child to be cleaned, or one that may be in
// a database that was not inspected. Before it is known that there is one, nothing has to feed the
// queue.
func (l *lint) cleaned(d inspected, recorded string) bool {
	for i, key := range l.keys {
		if d.is(key.Parent, recorded) && (l.found(i) || !l.complete && !accepts(l.accepted, key.Table)) {
			return true
		}
	}
	return false
}

// foreignKeys reports real foreign keys that keep definitions from deleting rows, or that leave
// them nothing to do.
func (l *lint) foreignKeys(d inspected) {
	for _, f := range d.ForeignKeys {
		if key := l.definition(d, func(k repo.LooseForeignKey) bool {
			return f.Blocks && d.is(k.Table, f.Parent) && k.OnDelete == repo.AsyncDelete
		}); key != nil {
			l.at(d.name, f.String()).fail("fk_blocks_deletion", "rows of %s that it refers to cannot be "+
				"deleted by %s (23503): give it ON DELETE CASCADE or SET NULL, or replace it by a "+
				"definition", key.Table, key)
		}
		if key := l.definition(d, func(k repo.LooseForeignKey) bool {
			return d.is(k.Table, f.Child) && d.is(k.Parent, f.Parent) &&
				slices.Contains(f.Columns, k.Columns[0])
		}); key != nil {
			l.at(d.name, f.String()).warn("fk_beside_definition", "is a real foreign key beside %s, "+
				"which finds nothing to do as long as it is there: drop one of the two", key)
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

// parents reports how the deletions from parents are not recorded, table by table and partition by
// partition.
func (l *lint) parents(d inspected) {
	var seen []string
	for _, key := range l.keys {
		parent, ok := d.Parents[key.Parent]
		recorded := repo.RecordedName(key.Parent, d.Queue.Schema)
		if !ok || slices.Contains(seen, recorded) || !l.cleaned(d, recorded) {
			continue
		}
		seen = append(seen, recorded)
		if parent.PartitionOf != "" {
			l.at(d.name, key.Parent).warn("parent_missing", "is a partition of %s, for which its "+
				"deletions are recorded: name that in the definitions", parent.PartitionOf)
			continue
		}
		track := "`caretaker lfk track " + repo.Argument(key.Parent) + " --database " + d.name
		if !slices.Equal(parent.Key, []string{"id"}) {
			track += " --column " + repo.Argument(strings.Join(parent.Key, ","))
		}
		for _, relation := range parent.Relations {
			l.at(d.name, relation.Name).trigger(key.Parent, relation.Trigger, d.Queue, track+"`")
		}
		l.keyType(d, l.at(d.name, key.Parent), parent)
	}
}

// trigger reports what is wrong with the trigger of one table or partition.
func (at spot) trigger(
	parent string, t *lfkadmin.Trigger, queue repo.DeletedRecords, track string,
) {
	if t == nil {
		at.fail("trigger_missing", "deletions from it are not noted: run %s", track)
		return
	}
	switch form, _ := t.Form(); {
	case form == lfkadmin.FormForeign:
		at.fail("trigger_missing", "its trigger %s calls %s, which notes no "+
			"deletions: drop or rename it and run %s", t.Name, t.Function, track)
	case form == lfkadmin.FormRight && t.RouteFault(queue) != "":
		at.fail("trigger_form", "deletions from it fail, because of its trigger %s: %s: create the queue, or correct "+
			"the trigger as GitLab's migrations do", t.Name, t.RouteFault(queue))
	case form == lfkadmin.FormWrong:
		at.fail("trigger_form", "its trigger %s calls %s(%s), which does not "+
			"record %s: run `caretaker lfk untrack %s` and %s",
			t.Name, t.Function, strings.Join(t.Arguments, ", "), parent, repo.Argument(parent), track)
	case t.Off():
		at.fail("trigger_disabled", "its trigger %s is disabled, or fires on "+
			"replicas only: run %s", t.Name, track)
	case t.Fires == "O":
		at.warn("trigger_not_always", "its trigger %s does not fire while "+
			"session_replication_role is replica: if rows are deleted so, ALTER TABLE %s ENABLE ALWAYS "+
			"TRIGGER %s", t.Name, t.Relation(), t.Name)
	}
}

// triggers reports tables whose deletions are recorded for nobody.
func (l *lint) triggers(d inspected) {
	var seen []string
	for _, t := range d.Triggers {
		if form, _ := t.Form(); form == lfkadmin.FormForeign {
			continue
		}
		recorded, shown := t.Recorded(), t.Parent
		table := repo.Table{Name: t.Parent}
		if !t.ParentHere {
			shown, table.Schema = recorded, t.ParentSchema
		}
		argument := repo.Argument(table.Written())
		if slices.Contains(seen, recorded) || l.served(d, recorded) {
			continue
		}
		if named := t.Named(); named != "" && named != recorded {
			l.at(d.name, t.Relation()).fail("trigger_form", "its trigger %s is for %s, which this table is "+
				"not, nor a partition of it: run `caretaker lfk untrack %s`", t.Name, named, argument)
			continue
		}
		seen = append(seen, recorded)
		if children := l.acceptedOf(d, recorded); len(children) > 0 {
			l.at(d.name, shown).warn("trigger_without_definition",
				"its deletions are noted by %s, but its child tables were accepted as absent: run "+
					"`caretaker lfk untrack %s`, or %s",
				t.Name, argument, revokeCommand(children))
			continue
		}
		l.at(d.name, shown).warn("trigger_without_definition",
			"its deletions are noted by %s, but no definition needs them: add one, "+
				"or run `caretaker lfk untrack %s`", t.Name, argument)
	}
}
