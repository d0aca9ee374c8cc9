package service

import (
	"cmp"
	"context"
	"slices"

	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// LooseForeignKeys are the loose foreign keys in use, with the result of their check.
type LooseForeignKeys struct {
	Keys []lfkrepo.Definition
	// Lint has the findings of `caretaker lfk lint`, apart from those about the file itself.
	admin.Lint
	// Adopted has the foreign keys that loose ones have replaced.
	Adopted []AdoptedKey
	// Absent has the child tables that no database has, and that wait for their acceptance.
	Absent []AbsentChild
	// Reused has the records on hold: another row has their key now.
	Reused []admin.FailingRecord
	// Refused is why the last reload of the file failed, "" if it did not.
	Refused string
}

// AbsentChild is an absent child table, with the finding about it.
type AbsentChild struct {
	Child string
	lfk.Finding
}

// AdoptedKey is a foreign key that a loose one has replaced.
type AdoptedKey struct{ Database, Key, Parent string }

// CheckLooseForeignKeys reads the loose foreign keys and checks them against all databases. It
// changes nothing, and may take seconds. Unchecked has the databases that cannot be read. It fails
// if none can be read.
func (s *Service) CheckLooseForeignKeys(ctx context.Context) (LooseForeignKeys, error) {
	keys := s.looseForeignKeys()
	found := LooseForeignKeys{Keys: keys, Refused: s.refused(lfk.Name)}
	of := admin.Admin{
		Databases: s.Databases, Definitions: &lfk.Definitions{File: s.definitionsFile, Keys: keys},
	}
	var err error
	if found.Lint, err = of.Lint(ctx); found.Findings == nil {
		return found, err
	}
	for _, f := range found.Findings {
		i := slices.IndexFunc(keys, func(k lfkrepo.Definition) bool { return k.String() == f.Object })
		if f.Code == "child_missing" && i >= 0 {
			found.Absent = append(found.Absent, AbsentChild{keys[i].Table, f})
		}
	}
	unchecked := func(name string, err error) {
		if err != nil && !slices.Contains(found.Unchecked, name) {
			found.Unchecked = append(found.Unchecked, name)
		}
	}
	found.Reused, err = of.Reused(ctx, "")
	failing, _ := fault.UnreachableDatabase(err)
	unchecked(cmp.Or(failing, "reused keys"), err)
	for _, d := range s.Databases {
		adopted, err := d.Capture.AdoptedKeys(ctx)
		unchecked(d.Name, err)
		for _, k := range adopted {
			found.Adopted = append(found.Adopted, AdoptedKey{d.Name, k.Named(), k.RecordedParent()})
		}
	}
	return found, nil
}
