package admin

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// CodeAdoptedUndefined is the code of findings about adopted foreign keys without a definition.
const CodeAdoptedUndefined = "adopted_without_definition"

// readAdopted reads the adopted foreign keys of a database.
func (l *lint) readAdopted(ctx context.Context, d *repo.Database) (err error) {
	if l.adopted == nil {
		l.adopted = map[string][]capture.AdoptedKey{}
	}
	l.adopted[d.Name], err = d.Capture.AdoptedKeys(ctx)
	return err
}

// undefinedAdoptions reports the adopted foreign keys if no definitions are configured.
func undefinedAdoptions(ctx context.Context, l Admin) (*lint, error) {
	check := &lint{Admin: l}
	err := l.each(ctx, func(d *repo.Database) error {
		err := check.readAdopted(ctx, d)
		check.undefined(lfk.Inspected{Name: d.Name})
		return err
	})
	return check, err
}

// needsDefinition reports whether an adopted foreign key to a parent, by its recorded name, has no
// definition.
func (l *lint) needsDefinition(d lfk.Inspected, recorded string) bool {
	return slices.ContainsFunc(l.adopted[d.Name], func(k capture.AdoptedKey) bool {
		return k.RecordedParent() == recorded && lfk.StandsFor(l.Keys, d.Queue.Schema, k) == nil
	})
}

// undefined reports adopted foreign keys without a definition: neither the constraint nor a worker
// cleans up after their parents.
func (l *lint) undefined(d lfk.Inspected) {
	for _, k := range l.adopted[d.Name] {
		if lfk.StandsFor(l.Keys, d.Queue.Schema, k) != nil {
			continue
		}
		repair := "set workers.loose_foreign_keys_cleanup.definitions to the file that contains the definition"
		if l.Definitions != nil {
			repair = "add or correct the definition in " + l.Definitions.File
		}
		child := catalog.Table{Schema: k.Schema, Name: k.Table}.Written()
		l.at(d.Name, k.Named()).fail(CodeAdoptedUndefined, "adopted foreign key %s to %s has no definition, so "+
			"child rows of deleted parents stay: %s, or run `caretaker lfk revert "+
			"%s`", k.Named(), k.RecordedParent(), repair,
			catalog.ReferenceArgument(child, k.Columns))
	}
}
