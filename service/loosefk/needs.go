package loosefk

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// needs are what the definitions do to their children, and runs to the queues. Runs look parents up.
func (k *looseForeignKeys) needs(ctx context.Context) (all []*repo.Needs, err error) {
	keys := k.LooseForeignKeys()
	if keys == nil {
		return nil, nil
	}
	const queue = "loose_foreign_keys_deleted_records"
	tables := map[string]repo.Rights{}
	for _, key := range keys {
		rights := repo.ToChange
		if key.OnDelete == repo.AsyncDelete {
			rights = repo.ToRemove
		}
		tables[key.Table] |= rights
		tables[key.Parent] |= repo.ToRead
	}
	for _, d := range k.Databases {
		n, err := d.Needs(ctx, map[string][]string{queue: nil})
		if err != nil {
			return nil, err
		}
		n.AddNamed(repo.ToRemove, queue)
		if err := n.AddWritten(ctx, tables); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
