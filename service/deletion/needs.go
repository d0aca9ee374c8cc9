package deletion

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// RemovalNeeds are what a [Remover] does with projects and groups.
func RemovalNeeds(ctx context.Context, main *repo.Database) (*repo.Needs, error) {
	n, err := main.Needs(ctx, removedColumns())
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"projects", "namespaces"} {
		if t := n.Catalog.Table(name); t != nil {
			bulk.AddRemoval(n, t.Table)
		}
	}
	n.AddNamed(repo.ToChange, ImportDetails)
	return n, nil
}

// needs are those of users and of their projects.
func (u *userDeletion) needs(ctx context.Context) ([]*repo.Needs, error) {
	users, err := u.Main.UserDeletionNeeds(ctx)
	if err != nil {
		return nil, err
	}
	projects, err := RemovalNeeds(ctx, u.Main)
	return []*repo.Needs{users, projects}, err
}
