package loosefk

import (
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo/lfkadmin"
)

// parents reports how the deletions from parents are not noted, table by table and partition by partition.
func (l *lint) parents(d inspected) {
	var seen []string
	for _, key := range l.keys {
		parent, here := d.Parents[key.Parent]
		if !here || slices.Contains(seen, key.Parent) || !l.cleaned(key.Parent) {
			continue
		}
		seen = append(seen, key.Parent)
		if parent.PartitionOf != "" {
			l.add(SeverityWarning, "parent_missing", d.name, key.Parent,
				"is a partition of %s, for which its deletions are recorded: name that in the definitions", parent.PartitionOf)
			continue
		}
		track := "`caretaker lfk track " + key.Parent + " --database " + d.name
		if parent.Key != "id" {
			track += " --column " + parent.Key
		}
		for _, relation := range parent.Relations {
			l.trigger(d, key.Parent, relation, track+"`")
		}
		switch {
		case parent.KeyType == "" && slices.ContainsFunc(parent.Relations, func(r lfkadmin.Relation) bool { return r.Trigger != nil }):
			l.add(SeverityError, "key_type", d.name, key.Parent, "has no column %s, which its trigger records: deletions from it fail: drop the trigger", parent.Key)
		case parent.KeyType != "" && !parent.KeyRight:
			l.add(SeverityError, "key_type", d.name, key.Parent,
				"its key %s is of type %s: only smallint, integer and bigint can be recorded, so it cannot have definitions", parent.Key, parent.KeyType)
		}
	}
}

// trigger reports what is wrong with the trigger of one table or partition.
func (l *lint) trigger(d inspected, parent string, relation lfkadmin.Relation, track string) {
	t := relation.Trigger
	if t == nil {
		l.add(SeverityError, "trigger_missing", d.name, relation.Name, "deletions from it are not noted: run %s", track)
		return
	}
	switch form, _ := t.Form(); {
	case form == lfkadmin.FormForeign:
		l.add(SeverityError, "trigger_missing", d.name, relation.Name,
			"its trigger %s calls %s, which notes no deletions: drop or rename it and run %s", t.Name, t.Function, track)
	case form == lfkadmin.FormWrong && t.Routed():
		l.add(SeverityError, "trigger_form", d.name, relation.Name,
			"its trigger %s sends records to queues that caretaker does not read: leave this parent to GitLab's own worker, or run `caretaker lfk untrack %s` and %s",
			t.Name, parent, track)
	case form == lfkadmin.FormWrong:
		l.add(SeverityError, "trigger_form", d.name, relation.Name,
			"its trigger %s calls %s(%s), which does not record %s: run `caretaker lfk untrack %s` and %s",
			t.Name, t.Function, strings.Join(t.Arguments, ", "), parent, parent, track)
	case t.Off():
		l.add(SeverityError, "trigger_disabled", d.name, relation.Name,
			"its trigger %s is disabled, or fires on replicas only: run %s", t.Name, track)
	case t.Fires == "O":
		l.add(SeverityWarning, "trigger_not_always", d.name, relation.Name,
			"its trigger %s rests while session_replication_role is replica: if rows are deleted so, enable it ALWAYS", t.Name)
	}
}

// triggers reports tables whose deletions are noted for nobody.
func (l *lint) triggers(d inspected) {
	var seen []string
	for _, t := range d.Triggers {
		if form, _ := t.Form(); form == lfkadmin.FormForeign {
			continue
		}
		recorded := t.Parent
		if !t.ParentHere {
			recorded = t.Relation()
		}
		if slices.Contains(seen, recorded) || t.ParentHere && l.served(recorded) {
			continue
		}
		seen = append(seen, recorded)
		if children := l.acceptedOf(recorded); t.ParentHere && len(children) > 0 {
			l.add(SeverityWarning, "trigger_without_definition", d.name, recorded,
				"its deletions are noted by %s, but its child tables were accepted as absent: run `caretaker lfk untrack %s`, or %s",
				t.Name, recorded, revokeCommand(children))
			continue
		}
		l.add(SeverityWarning, "trigger_without_definition", d.name, recorded,
			"its deletions are noted by %s, but no definition needs them: add one, or run `caretaker lfk untrack %s`", t.Name, recorded)
	}
}
