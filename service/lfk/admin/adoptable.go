package admin

import (
	"cmp"
	"context"
	"errors"
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

// Candidate is a foreign key with ON DELETE CASCADE or SET NULL.
type Candidate struct {
	Database   string   `json:"database"`
	Constraint string   `json:"constraint"`
	Table      string   `json:"table"`
	Columns    []string `json:"columns"`
	Parent     string   `json:"parent"`
	// OnDelete is PostgreSQL's action.
	OnDelete string `json:"on_delete"`
	// Rows is the planner's estimate of the child's rows, nil if unknown.
	Rows *int64 `json:"estimated_rows"`
	// Indexed: an index finds the children of a parent.
	Indexed bool `json:"indexed"`
	// Started: the definition is in the file.
	Started bool `json:"started"`
	// Refused is why it cannot be adopted. "" means it can.
	Refused string `json:"refused,omitempty"`
	// NoQueue: the database has no queue of deleted parents yet.
	NoQueue bool `json:"-"`

	adoption *Adoption
}

// Request returns the request that adopts the foreign key.
func (c Candidate) Request(holder string) AdoptRequest {
	return AdoptRequest{
		Table: c.adoption.real.Table.Written(), Columns: c.Columns, Constraint: c.Constraint, Holder: holder,
	}
}

// Adoptable returns the foreign keys of the selected databases that could be adopted, or why not,
// by database, table and name. It inspects each database once, and changes nothing.
func (l Admin) Adoptable(ctx context.Context) ([]Candidate, error) {
	if l.Definitions == nil {
		return nil, errNoDefinitions
	}
	all := []Candidate{}
	err := l.each(ctx, func(d *repo.Database) error {
		found, err := l.candidates(ctx, d)
		if err == nil && len(found) > 0 {
			err = l.judge(ctx, d, found)
		}
		all = append(all, found...)
		return err
	})
	return all, err
}

// candidates returns the foreign keys of a database, except partitions' copies of a table's own.
func (l Admin) candidates(ctx context.Context, d *repo.Database) (found []Candidate, err error) {
	keys, err := admin.New(d.Database).RealKeys(ctx, "")
	if err != nil {
		return nil, err
	}
	schema, err := d.ApplicationSchema(ctx)
	actions := map[string]string{
		catalog.OnDeleteCascade: "CASCADE", catalog.OnDeleteSetNull: "SET NULL",
	}
	for _, k := range keys {
		if k.OID == 0 || k.CopyOf != "" || actions[k.OnDelete] == "" || k.Table.Schema == "maintenance" {
			continue
		}
		a := l.adoption(d, schema, k, AdoptRequest{})
		c := Candidate{
			Database: d.Name, Constraint: k.Name, Table: a.key.Table, Columns: k.Columns,
			Parent: a.key.Parent, OnDelete: actions[k.OnDelete], Started: a.defined, adoption: a,
		}
		if k.Rows >= 0 {
			c.Rows = &k.Rows
		}
		if err := a.define(""); err != nil {
			c.Refused = strings.TrimPrefix(err.Error(), d.Name+": ")
		}
		if k.Adopted {
			reference := catalog.ReferenceArgument(c.Table, c.Columns)
			c.Refused = fmt.Sprintf("a revert of this foreign key has started: to finish the revert, run "+
				"`caretaker lfk revert %s`. To undo the revert, run `caretaker lfk adopt %[1]s`", reference)
		}
		found = append(found, c)
	}
	return found, err
}

// judge sets which candidates of a database have an index, and why some cannot be adopted.
func (l Admin) judge(ctx context.Context, d *repo.Database, all []Candidate) error {
	// 1. Inspect all of them together, as if each was a definition.
	together := &lfk.Definitions{File: l.Definitions.File}
	for _, c := range all {
		together.Keys = append(together.Keys, c.adoption.key)
	}
	check, err := Admin{
		Databases: l.Databases, Only: d.Name, Definitions: together, Progress: l.Progress,
	}.lint(ctx)
	if err != nil {
		return err
	}
	attribute(all, check.Seen[0], check.result.Findings)
	// 2. Check other databases with the same tables, and the triggers of each parent.
	tracking := map[string]error{}
	for i := range all {
		c := &all[i]
		if c.Refused != "" {
			continue
		}
		l.progress("%s: checking parents of foreign keys, %d of %d", d.Name, i+1, len(all))
		refused := c.adoption.checkDatabases(ctx)
		parent := catalog.ReferenceArgument(c.Parent, c.adoption.real.ParentColumns)
		if _, done := tracking[parent]; !done && refused == nil {
			_, tracking[parent] = c.adoption.at.TrackingSQL(ctx, c.Parent, c.adoption.real.ParentColumns...)
		}
		if refused = cmp.Or(refused, tracking[parent]); refused == nil {
			continue
		}
		_, no := errors.AsType[*admin.RefusedError](refused)
		if _, shared := errors.AsType[sharedError](refused); !no && !shared {
			return refused
		}
		c.Refused = strings.TrimPrefix(refused.Error(), d.Name+": ")
	}
	return nil
}

// attribute sets the findings about candidates. A finding about an object of some candidates is of
// these alone, another one of all.
func attribute(all []Candidate, d lfk.Inspected, findings []lfk.Finding) {
	objects, known := make([][]string, len(all)), map[string]bool{}
	for i, c := range all {
		objects[i] = objectsOf(d, c.adoption.key)
		for _, object := range objects[i] {
			known[object] = true
		}
	}
	for i := range all {
		c := &all[i]
		if d.Children[i] != nil {
			c.Indexed = d.Children[i].Indexed
		}
		for _, f := range findings {
			if !refuses(f) || known[f.Object] && !slices.Contains(objects[i], f.Object) {
				continue
			}
			c.NoQueue = c.NoQueue || f.Code == "queue_missing"
			advice := f.Advice
			if f.Object != c.adoption.key.String() {
				advice = f.Object + ": " + advice
			}
			c.Refused = format.Join(c.Refused, advice)
		}
	}
}

// objectsOf returns the objects of findings that concern a definition of a database.
func objectsOf(d lfk.Inspected, key lfkrepo.Definition) []string {
	names := []string{
		key.String(), key.Parent, catalog.RecordedName(key.Parent, d.Queue.Schema),
	}
	for _, r := range d.Parents[key.Parent].Relations {
		names = append(names, r.Name)
	}
	return names
}
