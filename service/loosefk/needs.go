package loosefk

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// needs are what the definitions do to their children, and runs to the queues.
func (k *looseForeignKeys) needs(ctx context.Context) (all []*repo.Needs, err error) {
	if k.config.Definitions == nil {
		return nil, nil
	}
	const queue = "loose_foreign_keys_deleted_records"
	wanted := map[string][]string{queue: nil}
	for _, key := range k.config.Definitions.Keys {
		wanted[key.Table] = nil
	}
	for _, d := range k.Databases {
		n, err := d.Needs(ctx, wanted)
		if err != nil {
			return nil, err
		}
		n.AddNamed(repo.ToRemove, queue)
		for _, key := range k.config.Definitions.Keys {
			rights := repo.ToChange
			if key.OnDelete == repo.AsyncDelete {
				rights = repo.ToRemove
			}
			n.AddNamed(rights, key.Table)
		}
		all = append(all, n)
	}
	return all, nil
}
