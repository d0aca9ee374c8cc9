package adjournedgroup

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/deletion"
)

// needs are those of the worker and of its job.
func (k *worker) needs(ctx context.Context) ([]*repo.Needs, error) {
	groups, err := k.Main.GroupNeeds(ctx)
	if err != nil {
		return nil, err
	}
	removal, err := deletion.RemovalNeeds(ctx, k.Main)
	return []*repo.Needs{groups, removal}, err
}
