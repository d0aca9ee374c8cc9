package admin

import (
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
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// AdoptRequest names a foreign key.
type AdoptRequest struct {
	Table   string
	Columns []string
	// Constraint selects one of several. "" means there must be exactly one.
	Constraint string
	// OnDelete is the action. "" means the constraint's.
	OnDelete string
	// Holder names the caller, for the lease.
	Holder string
}

// errNoDefinitions means that no file can take the definition of an adopted foreign key.
var errNoDefinitions = errors.New("no definitions file configured: set " +
	"workers.loose_foreign_keys_cleanup.definitions to a file, which may be empty")

// find finds the foreign key, and the definition that replaces it.
func (l Admin) find(ctx context.Context, r AdoptRequest) (*Adoption, error) {
	if l.Definitions == nil {
		return nil, errNoDefinitions
	}
	d, err := l.databaseOf(ctx, r.Table)
	if errors.Is(err, ErrUnknownTable) {
		err = unknownReference(ctx, l, r, err)
	}
	if err != nil {
		return nil, err
	}
	all, err := admin.New(d.Database).RealKeys(ctx, r.Table)
	if err != nil {
		return nil, err
	}
	key, err := choose(all, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	schema, err := d.ApplicationSchema(ctx)
	if err != nil {
		return nil, err
	}
	return l.adoption(d, schema, key, r), nil
}

// unknownReference returns the error for a foreign key of a table that no selected database has. A
// column that makes it the name of a table is probably that table's.
func unknownReference(ctx context.Context, l Admin, r AdoptRequest, unknown error) error {
	if whole := r.Table + "." + r.Columns[0]; len(r.Columns) == 1 {
		if databases, err := l.databasesOf(ctx, whole); err == nil && len(databases) > 0 {
			return fmt.Errorf("%w %s: this is the name of a table, so write TABLE.COLUMN", ErrUnknownKey, whole)
		}
	}
	return unknown
}

// adoption returns the adoption of a foreign key, without steps. schema is the application's.
func (l Admin) adoption(d *repo.Database, schema string, key admin.RealKey, r AdoptRequest) *Adoption {
	a := &Adoption{
		Database: d.Name, admin: l, at: admin.New(d.Database), database: d, real: key, holder: r.Holder,
		Constraint: key.Name,
	}
	a.key = lfkrepo.Definition{
		Table: writtenIn(key.Table, schema), Parent: writtenIn(key.Parent, schema),
		Columns: key.Columns, OnDelete: r.OnDelete,
	}
	if known := a.known(schema); known != nil {
		a.key, a.defined = *known, true
	}
	a.Definition = a.key.String()
	return a
}

// choose returns the one foreign key that the request names.
func choose(all []admin.RealKey, r AdoptRequest) (admin.RealKey, error) {
	named := r.Table + "." + lfkrepo.ColumnList(r.Columns)
	wanted := slices.Sorted(slices.Values(r.Columns))
	var found []admin.RealKey
	var names, others []string
	for _, k := range all {
		if slices.Equal(wanted, slices.Sorted(slices.Values(k.Columns))) {
			found, names = append(found, k), append(names, k.Name)
		} else {
			others = append(others, lfkrepo.ColumnList(k.Columns))
		}
	}
	if r.Constraint != "" && len(found) > 0 {
		found = slices.DeleteFunc(found, func(k admin.RealKey) bool { return k.Name != r.Constraint })
		if len(found) == 0 {
			return admin.RealKey{}, fmt.Errorf("%w %s on %s: set --constraint to one of %s", ErrUnknownKey,
				r.Constraint, named, strings.Join(names, ", "))
		}
	}
	switch len(found) {
	case 0:
		hint := ""
		if len(others) > 0 {
			hint = ": " + r.Table + " has foreign keys on " + strings.Join(others, ", ")
			if near := lfk.DidYouMean(format.Nearest(lfkrepo.ColumnList(r.Columns), others)); near != "" {
				hint += " (" + near + ")"
			}
		}
		return admin.RealKey{}, fmt.Errorf("%w %s%s", ErrUnknownKey, named, hint)
	case 1:
		if of := found[0].CopyOf; of != "" {
			return found[0], fmt.Errorf("foreign key %s on %s is a copy of a foreign key on the partitioned table %s: use %[4]s",
				found[0].Name, named, of, catalog.ReferenceArgument(of, r.Columns))
		}
		return found[0], nil
	}
	return found[0], fmt.Errorf("%s has several foreign keys (%s): select one with --constraint",
		named, strings.Join(names, ", "))
}

// writtenIn returns a table's name as in definitions. schema is the application's.
func writtenIn(t catalog.Table, schema string) string {
	if t.Schema == schema {
		t.Schema = ""
	}
	return t.Written()
}

// known returns the definition that replaces the foreign key. nil means the file has none.
func (a *Adoption) known(schema string) *lfkrepo.Definition {
	return lfk.StandsFor(a.admin.Definitions.Keys, schema, capture.AdoptedKey{
		Schema: a.real.Table.Schema, Table: a.real.Table.Name, Columns: a.real.Columns,
		ParentSchema: a.real.Parent.Schema, Parent: a.real.Parent.Name, Definition: a.real.Definition,
	})
}
