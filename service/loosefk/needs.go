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
	queues := map[string][]string{}
	for _, queue := range repo.QueueTables() {
		queues[queue] = nil
	}
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
		n, err := d.Needs(ctx, queues)
		if err != nil {
			return nil, err
		}
		n.AddNamed(repo.ToRemove, repo.QueueTables()...)
		if err := n.AddWritten(ctx, tables); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
