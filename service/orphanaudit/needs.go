package orphanaudit

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// needs are the reads of children and parents, and the records. Where the worker is not enabled
// nothing is asked for.
func (a *audit) needs(ctx context.Context) (all []*repo.Needs, err error) {
	if a.LooseForeignKeys == nil || a.config.Disabled() {
		return nil, nil
	}
	const queue = "loose_foreign_keys_deleted_records"
	wanted := map[string][]string{queue: nil}
	for _, key := range a.LooseForeignKeys {
		wanted[key.Table], wanted[key.Parent] = nil, nil
	}
	for _, d := range a.Databases {
		n, err := d.Needs(ctx, wanted)
		if err != nil {
			return nil, err
		}
		if a.fixes() {
			n.AddNamed(repo.MaySelect|repo.MayInsert, queue)
		}
		for name := range wanted {
			n.AddNamed(repo.ToRead, name)
		}
		all = append(all, n)
	}
	return all, nil
}
