package admin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// missing reports tables that are in no configured database. names returns the tables that are.
func (l *lint) missing(names func() lfk.TableNames) {
	if !l.Complete {
		return
	}
	parents := map[string]bool{}
	for i, key := range l.Keys {
		parent := slices.ContainsFunc(l.Seen, func(d lfk.Inspected) bool {
			_, ok := d.Parents[key.Parent]
			return ok
		})
		if !parent && !parents[key.Parent] {
			parents[key.Parent] = true
			if at := l.at("", key.Parent); l.others[key.Parent] != "" {
				at.fail("parent_missing", "deletions from %s are not recorded, because %s, and track "+
					"that table", key.Parent, l.others[key.Parent])
			} else {
				at.warn("parent_missing", "%s is not in any configured database%s, so the definitions with this "+
					"parent have no records: configure the database that contains the table, or remove these "+
					"definitions", key.Parent, lfk.Parenthesized(names().Hint(key.Parent)))
			}
		}
		switch {
		case l.gone[key.Table] != nil && (l.Found(i) || l.others[key.Table] == ""):
			l.at("", key.String()).fail("child_missing", "%s. Records of %s are held",
				lfk.DroppedText(key.Table, l.gone[key.Table]), key.Parent)
		case l.Found(i):
		case l.others[key.Table] != "":
			l.at("", key.String()).fail("child_no_table", "%s. Records of %s are held", l.others[key.Table], key.Parent)
		case l.Accepted.Everywhere(key.Table):
			l.at("", key.String()).warn("child_absent", "%s is not in any configured database and was accepted as "+
				"absent, so the definition is skipped until a run finds the table", key.Table)
		default:
			l.at("", key.String()).fail("child_missing", "%s is not in any configured "+
				"database%s, so records of %s are held: configure the database that contains the table, or run "+
				"`caretaker lfk accept-absent %s`",
				key.Table, lfk.Parenthesized(names().Hint(key.Table)), key.Parent, format.Argument(key.Table))
		}
	}
}

// shared reports definitions whose parent is in several databases: a record of one applies to all
// that have the child. With GitLab's queue that is normal: its databases have copies of tables.
func (l *lint) shared() {
	for i, key := range l.Keys {
		var databases, tracked, children []string
		for _, d := range l.Seen {
			parent, here := d.Parents[key.Parent]
			if here && parent.PartitionOf == "" && (d.Queue.Managed || !d.Queue.Exists) {
				databases = append(databases, d.Name)
			}
			if d.Queue.Managed && parent.Tracked() {
				tracked = append(tracked, d.Name)
			}
			if d.Children[i] != nil {
				children = append(children, d.Name)
			}
		}
		if len(databases) > 1 && len(tracked) > 0 && len(children) > 0 {
			l.at("", key.String()).warn("key_in_several_databases", "%s is in several databases (%s), and a "+
				"deletion in any of these databases affects the rows of %s in %s: make sure that each key of "+
				"%[1]s is used in only one database, and untrack %[1]s in databases that contain only a "+
				"copy", key.Parent, format.List(databases), key.Table,
				format.List(children))
		}
	}
}

// hasDefinitions reports whether a parent, by its recorded name, has definitions. A parent whose
// children are all accepted as absent counts as one without.
func (l *lint) hasDefinitions(d lfk.Inspected, recorded string) bool {
	for i, key := range l.Keys {
		if d.Is(key.Parent, recorded) && (l.Found(i) || !l.Accepted.Everywhere(key.Table)) {
			return true
		}
	}
	return false
}

// acceptedOf returns the children of a parent, by its recorded name, that were accepted as absent.
func (l *lint) acceptedOf(d lfk.Inspected, recorded string) (children []string) {
	for _, key := range l.Keys {
		if d.Is(key.Parent, recorded) && l.Accepted.Everywhere(key.Table) && !slices.Contains(children,
			key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}

// revokeCommand returns the command that ends the acceptance of the children, with names quoted
// for a shell.
func revokeCommand(children []string) string {
	arguments := make([]string, len(children))
	for i, child := range children {
		arguments[i] = format.Argument(child)
	}
	return "`caretaker lfk accept-absent --revoke " + strings.Join(arguments, " ") + "`"
}

// foreignKeys reports real foreign keys that keep definitions from deleting rows, or that leave
// them no rows.
func (l *lint) foreignKeys(d lfk.Inspected) {
	for _, f := range d.ForeignKeys {
		if key := l.definition(d, func(k lfkrepo.Definition) bool {
			return f.Blocks() && d.Is(k.Table, f.To) && k.OnDelete == lfkrepo.AsyncDelete
		}); key != nil {
			l.at(d.Name, f.String()).fail("fk_blocks_deletion", "foreign key %[3]s prevents %[2]s from deleting "+
				"rows of %[1]s (23503): set the foreign key to ON DELETE CASCADE or SET NULL, or replace it with "+
				"a definition", key.Table, key, f)
		}
		if key := l.definition(d, func(k lfkrepo.Definition) bool {
			return d.Is(k.Table, f.From) && d.Is(k.Parent, f.To) &&
				slices.Contains(catalog.NamesOf(f.Columns), k.Columns[0])
		}); key != nil {
			l.at(d.Name, f.String()).warn("fk_beside_definition", "the foreign key %s duplicates the definition "+
				"%s: %s", f, key, finish(d, f, *key))
		}
	}
}

// finish returns what to do about a real foreign key beside a definition. If an adoption may have
// left both, the operator must finish it or undo it.
func finish(d lfk.Inspected, f admin.ForeignKey, key lfkrepo.Definition) string {
	columns := slices.Sorted(slices.Values(catalog.NamesOf(f.Columns)))
	same := slices.Equal(columns, slices.Sorted(slices.Values(key.Columns)))
	if !same || len(key.Conditions) > 0 || !d.Is(key.Table, f.Child.Recorded("")) {
		return "drop the foreign key, or remove the definition"
	}
	reference := catalog.ReferenceArgument(key.Table, key.Columns)
	return fmt.Sprintf("to use the definition, wait until every server has loaded it, then run `caretaker lfk "+
		"adopt %s` to drop the foreign key. To keep the foreign key instead, run `caretaker lfk revert %s` to "+
		"remove the definition", reference, reference)
}

// definition returns the first of its kind whose child is in a database, or nil.
func (l *lint) definition(d lfk.Inspected, is func(lfkrepo.Definition) bool) *lfkrepo.Definition {
	for i, key := range l.Keys {
		if d.Children[i] != nil && is(key) {
			return &key
		}
	}
	return nil
}

// parents reports why the deletions from parents are not recorded, by table and partition.
func (l *lint) parents(d lfk.Inspected) {
	for _, name := range l.CleanedParents(d) {
		parent, at := d.Parents[name], l.at(d.Name, name)
		if parent.PartitionOf != "" {
			at.warn("parent_missing", "%s is a partition, so its deletions are recorded for %s: use %[2]s "+
				"in the definitions", name, parent.PartitionOf)
			continue
		}
		track := trackCommand(d.Name, parent.Key, name)
		if !parent.Tracked() && d.Queue.Managed && slices.Equal(parent.Key, []string{"id"}) {
			track += " (add --column if child rows refer to a column other than id)"
		}
		for _, relation := range parent.Relations {
			on := l.at(d.Name, relation.Name)
			if code, fault := lfk.Unrecorded(parent, relation), routeFault(d, relation); code == "" && fault != "" {
				on.fail("trigger_form", "deletions fail, because trigger %s %s: create the "+
					"queue, or restore GitLab's version of the trigger", relation.Trigger.Name, fault)
			} else {
				on.trigger(name, code, relation.Trigger, track)
			}
			on.others(name, relation)
		}
		if len(parent.Heirs) > 0 {
			at.warn("parent_inherited", "deletions from tables that inherit from %[2]s (%[1]s) are not "+
				"recorded: delete from %[2]s instead", format.List(parent.Heirs), name)
		}
		l.keyType(d, at, parent)
	}
}

// trackCommand returns the command that tracks tables by a key.
func trackCommand(database string, key []string, tables ...string) string {
	words := []string{"`caretaker lfk track"}
	for _, name := range tables {
		words = append(words, format.Argument(name))
	}
	command := strings.Join(append(words, "--database", database), " ")
	if !slices.Equal(key, []string{"id"}) {
		command += " --column " + format.Argument(strings.Join(key, ","))
	}
	return command + "`"
}

// routeFault returns why the routes of its trigger make deletions fail, or "".
func routeFault(d lfk.Inspected, r admin.Relation) string {
	if r.Trigger == nil {
		return ""
	}
	return r.Trigger.RouteFault(d.Queue)
}

// trigger reports the faults of the trigger of one table or partition.
func (at spot) trigger(parent, code string, t *admin.Trigger, track string) {
	switch {
	case code == "trigger_missing" && t == nil:
		at.fail(code, "deletions from %s are not recorded: run %s", at.object, track)
	case (code == "trigger_missing" || code == "trigger_form") && t.Idle:
		at.fail(code, "trigger %s calls %s, which inserts nothing or uses a queue that does not exist: run "+
			"`caretaker lfk install`, or restore GitLab's version of the function if the queue belongs to "+
			"GitLab", t.Name, t.Function)
	case code == "trigger_missing":
		at.fail(code, "trigger %s calls %s, which records no deletions: drop or rename the "+
			"trigger, then run %s", t.Name, t.Function, track)
	case code == "trigger_form":
		at.fail(code, "trigger %s calls %s(%s), which is not the function for %s: run `caretaker lfk untrack %s`, "+
			"then run %s",
			t.Name, t.Function, strings.Join(t.Arguments, ", "), parent, format.Argument(parent), track)
	case code == "trigger_disabled":
		at.fail(code, "trigger %s is disabled, or fires only on replicas: run %s", t.Name, track)
	case code == "trigger_replication":
		at.fail(code, "a subscription replicates to %s, but trigger %s does not fire when logical replication "+
			"deletes rows: run %s to replace the trigger with a row trigger", parent, t.Name, track)
	case t.Fires == "O":
		at.warn("trigger_not_always", "trigger %s does not fire in sessions with session_replication_role = "+
			"replica: if these sessions delete rows, run ALTER TABLE %s ENABLE ALWAYS "+
			"TRIGGER %s", t.Name, t.Relation(), t.Name)
	}
}

// others reports triggers that record the deletions from a table or partition besides its own.
func (at spot) others(parent string, r admin.Relation) {
	for _, t := range r.Others {
		at.warn("trigger_twice", "trigger %s duplicates trigger %s, which already records the deletions for %s: "+
			"run DROP TRIGGER %s", t.Name, r.Trigger.Name, parent, t.Droppable)
	}
}

// triggers reports tables whose deletions are recorded unnecessarily.
func (l *lint) triggers(d lfk.Inspected) {
	var seen []string
	for _, t := range d.Triggers {
		if form, _ := t.Form(); form == admin.FormForeign {
			continue
		}
		recorded, shown := t.Recorded(), t.Parent
		table := catalog.Table{Name: t.Parent}
		if !t.ParentHere {
			shown, table.Schema = recorded, t.ParentSchema
		}
		argument := format.Argument(table.Written())
		if slices.Contains(seen, recorded) || l.hasDefinitions(d, recorded) || l.needsDefinition(d, recorded) {
			continue
		}
		if named := t.Named(); named != "" && named != recorded {
			l.at(d.Name, t.Relation()).fail("trigger_form", "trigger %s is for %s, but is on %s, which is "+
				"neither %[2]s nor one of its partitions: run `caretaker lfk untrack "+
				"%s`", t.Name, named, t.Relation(), argument)
			continue
		}
		seen = append(seen, recorded)
		if children := l.acceptedOf(d, recorded); len(children) > 0 {
			l.at(d.Name, shown).warn("trigger_without_definition",
				"trigger %s records deletions, but the child tables were accepted as absent: run `caretaker lfk "+
					"untrack %s`, or run %s",
				t.Name, argument, revokeCommand(children))
			continue
		}
		l.at(d.Name, shown).warn("trigger_without_definition",
			"trigger %s records deletions, but no definition has %s as its parent: add a definition, or "+
				"run `caretaker lfk untrack %s`", t.Name, shown, argument)
	}
}
