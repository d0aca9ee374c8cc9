package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// Needs returns what the configured workers and the jobs do with the application's tables in one
// database, whether or not caretaker's role has the privileges. It follows the workers' lists, the
// definitions and the foreign keys.
func (s *Service) Needs(ctx context.Context, d *repo.Database) (*catalog.Needs, error) {
	n, err := d.Schema.Needs(ctx, bulk.ForRemoval(map[string][]string{}))
	if err != nil {
		return nil, err
	}
	add := func(by string, uses func(database string) []catalog.Use) error {
		if uses == nil {
			return nil
		}
		n.Begin(by)
		return n.AddUses(ctx, uses(d.Name), func(t catalog.Table) { bulk.AddRemoval(n, t) })
	}
	for _, w := range s.Workers {
		missing, err := w.Missing(ctx)
		if err != nil && !errors.Is(err, dberr.ErrForbidden) {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		if missing != "" {
			continue
		}
		if err := add(w.Name, w.Uses); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Kinds)) {
		if err := add(name, s.Kinds[name].Uses); err != nil {
			return nil, err
		}
	}
	err = n.AddTriggers(ctx)
	return n, err
}
