package orphanaudit

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// needs are the reads of children and parents, and the records. Where the worker is not enabled
// nothing is asked for.
func (a *audit) needs(ctx context.Context) (all []*repo.Needs, err error) {
	keys := a.LooseForeignKeys()
	if keys == nil || a.config.Disabled() {
		return nil, nil
	}
	queues := map[string][]string{}
	for _, queue := range repo.QueueTables() {
		queues[queue] = nil
	}
	tables := map[string]repo.Rights{}
	for _, key := range keys {
		tables[key.Table], tables[key.Parent] = repo.ToRead, repo.ToRead
	}
	for _, d := range a.Databases {
		n, err := d.Needs(ctx, queues)
		if err != nil {
			return nil, err
		}
		if a.fixes() {
			n.AddNamed(repo.MaySelect, repo.QueueTables()...)
			n.AddNamed(repo.MayInsert, repo.QueueTables()[0])
		}
		if err := n.AddWritten(ctx, tables); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
