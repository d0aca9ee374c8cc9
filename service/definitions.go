package service

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
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
	// Reused has the records on hold, at most maxReused: another row has their key now.
	Reused []admin.Record
	// Refused is why the last reload of the file failed, "" if it did not.
	Refused string
}

// maxReused is the maximum number of records on hold that a check reads.
const maxReused = 101

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
	reused, unread, err := of.Records(ctx, admin.RecordFilter{State: admin.RecordReused, Limit: maxReused})
	unchecked("reused keys", err)
	for _, name := range unread {
		unchecked(name, dberr.ErrUnreachable)
	}
	found.Reused = reused
	adopted, errs := make([][]capture.AdoptedKey, len(s.Databases)), make([]error, len(s.Databases))
	run.EachDatabase(ctx, s.Databases, func(ctx context.Context, i int, d *repo.Database) {
		adopted[i], errs[i] = d.Capture.AdoptedKeys(ctx)
	})
	for i, d := range s.Databases {
		unchecked(d.Name, errs[i])
		for _, k := range adopted[i] {
			found.Adopted = append(found.Adopted, AdoptedKey{d.Name, k.Named(), k.RecordedParent()})
		}
	}
	return found, nil
}
