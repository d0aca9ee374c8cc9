package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
)

// Needs is what the workers that are configured, and the jobs, do with the tables of the
// application in one database, and what a role needs for it.
type Needs struct {
	*repo.Needs
	// By are the workers and kinds of job that use a table, by name.
	By map[repo.Table][]string
	// Grants are what a role needs for all of it.
	Grants []repo.Grant
}

// Needs says what is done with the tables of a database, and which grants that takes, whether
// caretaker's role has them or not.
func (s *Service) Needs(ctx context.Context, d *repo.Database) (n Needs, err error) {
	if n.Needs, err = d.Needs(ctx, nil); err != nil {
		return n, err
	}
	n.By = map[repo.Table][]string{}
	for _, w := range s.engine.Workers {
		missing, err := w.Missing(ctx)
		if err != nil && !errors.Is(err, repo.ErrForbidden) {
			return n, fmt.Errorf("%s: %w", w.Name, err)
		}
		if missing != "" {
			continue
		}
		if err := n.add(ctx, w.Name, w.Needs); err != nil {
			return n, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.pool.Kinds)) {
		if err := n.add(ctx, name, s.pool.Kinds[name].Needs); err != nil {
			return n, err
		}
	}
	if err := n.AddTriggers(ctx); err != nil {
		return n, err
	}
	n.Grants, err = n.Needs.Grants(ctx)
	return n, err
}

// add adds what a worker or kind of job does in this database.
func (n *Needs) add(
	ctx context.Context, by string, ask func(context.Context) ([]*repo.Needs, error),
) error {
	if ask == nil {
		return nil
	}
	all, err := ask(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", by, err)
	}
	for _, one := range all {
		if one.Catalog.Database != n.Catalog.Database {
			continue
		}
		n.Join(one)
		for t := range one.Tables {
			if !slices.Contains(n.By[t], by) {
				n.By[t] = append(n.By[t], by)
			}
		}
	}
	return nil
}
