package lfk

import (
	"slices"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

// Severities of a finding.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Finding is something about loose foreign keys that the operator should check.
type Finding struct {
	Severity string `json:"severity"`
	// Code is one of the fixed names of the kinds of findings.
	Code string `json:"code"`
	// Database is empty for a finding about the definitions file or the configuration.
	Database string `json:"database"`
	// Object is the definition, table, leaf, trigger or file concerned.
	Object string `json:"object"`
	// Advice is what to do.
	Advice string `json:"advice"`
}

// Inspected is the state of an inspected database.
type Inspected struct {
	Name string
	admin.Inspection
}

// Check compares definitions with the databases.
type Check struct {
	Keys []lfk.Definition
	// Seen are the databases that were inspected.
	Seen []Inspected
	// Complete: all configured databases were inspected, so that an unseen table does not exist.
	Complete bool
	// Accepted lists the children that were accepted as absent.
	Accepted Absences
}

// Found reports whether the child of the i-th definition is in an inspected database.
func (c *Check) Found(i int) bool {
	return slices.ContainsFunc(c.Seen, func(d Inspected) bool { return d.Children[i] != nil })
}

// Is reports whether a definition's table name means a recorded one.
func (d Inspected) Is(name, recorded string) bool {
	return catalog.RecordedName(name, d.Queue.Schema) == recorded
}

// Tracks reports whether a trigger records deletions from a table, by its recorded name.
func (d Inspected) Tracks(recorded string) bool {
	return slices.ContainsFunc(d.Triggers, func(t admin.Trigger) bool {
		form, _ := t.Form()
		return form != admin.FormForeign && t.Recorded() == recorded
	})
}

// cleaned reports whether a parent, by its recorded name, has a definition with a child to
// clean. The child may be in an uninspected database. Until such a child is known, the queue
// requires no records.
func (c *Check) cleaned(d Inspected, recorded string) bool {
	for i, key := range c.Keys {
		if d.Is(key.Parent, recorded) && (c.Found(i) || !c.Complete && !c.Accepted.Everywhere(key.Table)) {
			return true
		}
	}
	return false
}

// CleanedParents returns the parents whose deletions a database must record, by their names in the
// definitions.
func (c *Check) CleanedParents(d Inspected) (names []string) {
	var seen []string
	for _, key := range c.Keys {
		recorded := catalog.RecordedName(key.Parent, d.Queue.Schema)
		if _, here := d.Parents[key.Parent]; here && !slices.Contains(seen, recorded) && c.cleaned(d, recorded) {
			seen, names = append(seen, recorded), append(names, key.Parent)
		}
	}
	return names
}

// Untracked returns the parents whose deletions, or those of a partition, are not recorded.
func (c *Check) Untracked(d Inspected) (names []string) {
	for _, name := range c.CleanedParents(d) {
		parent := d.Parents[name]
		for _, relation := range parent.Relations {
			fails := relation.Trigger != nil && len(parent.Columns) < len(parent.Key)
			if parent.PartitionOf == "" && (fails || Unrecorded(parent, relation) != "") {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

// Unrecorded returns a code for why deletions from a table or partition are not, or not all,
// recorded under the name of its parent. "" means they are.
func Unrecorded(parent admin.Parent, r admin.Relation) (code string) {
	if r.Trigger == nil {
		return "trigger_missing"
	}
	switch form, _ := r.Trigger.Form(); {
	case form == admin.FormForeign:
		return "trigger_missing"
	case form == admin.FormWrong:
		return "trigger_form"
	case r.Trigger.Off():
		return "trigger_disabled"
	case parent.Replicated && !(r.Trigger.Row && r.Trigger.Fires == "A"):
		return "trigger_replication"
	}
	return ""
}
