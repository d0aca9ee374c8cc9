package admin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// Overview is the result of Admin.List.
type Overview struct {
	// Keys are the definitions, the adopted foreign keys without one, and the tracked tables with
	// neither, by parent and child.
	Keys []ListedKey `json:"loose_foreign_keys"`
	// Untracked lists the parents whose deletions are not recorded, but should be.
	Untracked []UntrackedParent `json:"untracked_parents"`
	// Unknown lists the parents that are in no configured database.
	Unknown []string `json:"unknown_parents"`
}

// ListedKey is a loose foreign key, or a tracked table without one.
type ListedKey struct {
	Parent string `json:"parent"`
	// Table and Columns are the child's, empty for a tracked table alone.
	Table   string   `json:"table,omitempty"`
	Columns []string `json:"columns,omitempty"`
	// OnDelete is the action. It is empty without a definition.
	OnDelete   string `json:"on_delete,omitempty"`
	Conditions string `json:"conditions,omitempty"`
	// Adopted: `caretaker lfk adopt` has dropped the real foreign key.
	Adopted bool `json:"adopted"`
	// Tracked and Untracked are the databases of the parent that record its deletions, and that do
	// not. Children are the databases of the child.
	Tracked   []string `json:"tracked"`
	Untracked []string `json:"untracked"`
	Children  []string `json:"child_databases"`
}

// UntrackedParent is a parent whose deletions a database should record.
type UntrackedParent struct {
	Database string   `json:"database"`
	Parent   string   `json:"parent"`
	Key      []string `json:"key"`
}

// List reads the tracked tables and the adopted foreign keys of the selected databases, and compares
// them with the definitions. It changes nothing. With [Admin.Only] it leaves out the definitions
// whose tables are in other databases. The error has the databases that cannot be read.
func (l Admin) List(ctx context.Context) (Overview, error) {
	o := &overview{adopted: map[string][]capture.AdoptedKey{}, untracked: map[string][]string{}}
	if l.Definitions != nil {
		o.Keys = l.Definitions.Keys
	}
	err := l.each(ctx, func(d *repo.Database) error {
		seen, err := admin.New(d.Database).InspectParents(ctx, o.Keys)
		if err != nil {
			return err
		}
		o.Seen = append(o.Seen, lfk.Inspected{Name: d.Name, Inspection: seen})
		o.adopted[d.Name], err = d.Capture.AdoptedKeys(ctx)
		return err
	})
	if err != nil && len(o.Seen) == 0 {
		return Overview{}, err
	}
	o.Complete = len(o.Seen) == len(l.Databases)
	if slices.ContainsFunc(o.Seen, func(d lfk.Inspected) bool { return d.Name == l.Databases[0].Name }) {
		accepted, mainErr := l.AbsentChildren(ctx)
		o.Accepted, err = lfk.AbsencesOf(accepted), errors.Join(err, mainErr)
	}
	return o.result(), err
}

// overview is an overview in the making.
type overview struct {
	lfk.Check
	// adopted are the adopted foreign keys by database, untracked the parents that are not tracked.
	adopted   map[string][]capture.AdoptedKey
	untracked map[string][]string
}

// result compares the definitions with the databases.
func (o *overview) result() Overview {
	all := Overview{Keys: []ListedKey{}, Untracked: []UntrackedParent{}, Unknown: []string{}}
	for _, d := range o.Seen {
		o.untracked[d.Name] = o.Untracked(d)
	}
	// 1. The definitions.
	for i, k := range o.Keys {
		listed := o.listed(k, i)
		missing := len(listed.Tracked)+len(listed.Untracked) == 0
		switch {
		case missing && o.Complete && !slices.Contains(all.Unknown, k.Parent):
			all.Unknown = append(all.Unknown, k.Parent)
		case missing && !o.Complete && len(listed.Children) == 0:
			continue
		}
		all.Keys = append(all.Keys, listed)
	}
	for _, d := range o.Seen {
		// 2. Adopted foreign keys: of a definition, or without one.
		for _, a := range o.adopted[d.Name] {
			o.addAdopted(&all, d, a)
		}
		// 3. Tracked tables without a foreign key, and parents that are not tracked.
		for _, t := range d.Triggers {
			parent := writtenIn(catalog.Table{Schema: t.ParentSchema, Name: t.Parent}, d.Queue.Schema)
			if form, _ := t.Form(); form != admin.FormForeign && !all.hasParent(d, parent) {
				all.Keys = append(all.Keys, o.listed(lfkrepo.Definition{Parent: parent}, -1))
			}
		}
		for _, name := range o.untracked[d.Name] {
			all.Untracked = append(all.Untracked, UntrackedParent{d.Name, name, d.Parents[name].Key})
		}
	}
	slices.SortStableFunc(all.Keys, func(a, b ListedKey) int {
		return cmp.Or(cmp.Compare(a.Parent, b.Parent), cmp.Compare(a.Table, b.Table))
	})
	return all
}

// hasParent reports whether a key has a parent of a database, by the name in definitions.
func (all Overview) hasParent(d lfk.Inspected, name string) bool {
	recorded := catalog.RecordedName(name, d.Queue.Schema)
	return slices.ContainsFunc(all.Keys, func(k ListedKey) bool { return d.Is(k.Parent, recorded) })
}

// listed returns a key with its databases. i is the place of its definition, or -1.
func (o *overview) listed(k lfkrepo.Definition, i int) ListedKey {
	listed := ListedKey{
		Parent: k.Parent, Table: k.Table, Columns: k.Columns, OnDelete: k.OnDelete,
		Tracked: []string{}, Untracked: []string{}, Children: []string{},
	}
	var conditions []string
	for _, c := range k.Conditions {
		conditions = append(conditions, c.Column+" = "+c.Value)
	}
	listed.Conditions = strings.Join(conditions, ", ")
	for _, d := range o.Seen {
		recorded := catalog.RecordedName(k.Parent, d.Queue.Schema)
		unrecorded := slices.ContainsFunc(o.untracked[d.Name], func(name string) bool {
			return d.Is(name, recorded)
		})
		switch _, here := d.Parents[k.Parent]; {
		case d.Tracks(recorded) && !unrecorded:
			listed.Tracked = append(listed.Tracked, d.Name)
		case here:
			listed.Untracked = append(listed.Untracked, d.Name)
		}
		if i >= 0 && d.Children[i] != nil {
			listed.Children = append(listed.Children, d.Name)
		}
	}
	return listed
}

// addAdopted marks the definition of an adopted foreign key, or adds a key that has none.
func (o *overview) addAdopted(all *Overview, d lfk.Inspected, a capture.AdoptedKey) {
	found := lfk.StandsFor(o.Keys, d.Queue.Schema, a)
	if found != nil {
		for i, k := range all.Keys {
			if k.Table == found.Table && k.Parent == found.Parent && k.Conditions == "" &&
				slices.Equal(k.Columns, found.Columns) {
				all.Keys[i].Adopted = true
			}
		}
		return
	}
	listed := o.listed(lfkrepo.Definition{
		Table:   writtenIn(catalog.Table{Schema: a.Schema, Name: a.Table}, d.Queue.Schema),
		Parent:  writtenIn(catalog.Table{Schema: a.ParentSchema, Name: a.Parent}, d.Queue.Schema),
		Columns: a.Columns,
	}, -1)
	listed.Adopted, listed.Children = true, []string{d.Name}
	all.Keys = append(all.Keys, listed)
}

// TrackCommands returns the commands that track the untracked parents.
func (all Overview) TrackCommands() (commands []string) {
	type place struct{ database, key string }
	tables, places := map[place][]UntrackedParent{}, []place{}
	for _, u := range all.Untracked {
		at := place{u.Database, strings.Join(u.Key, ",")}
		if tables[at] == nil {
			places = append(places, at)
		}
		tables[at] = append(tables[at], u)
	}
	for _, at := range places {
		var names []string
		for _, u := range tables[at] {
			names = append(names, u.Parent)
		}
		commands = append(commands, trackCommand(at.database, tables[at][0].Key, names...))
	}
	return commands
}
