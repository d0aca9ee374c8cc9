package loosefk

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
)

// Rows that triggers and rules keep. A trigger that returns NULL leaves a row as it is, without an
// error; a statement that has locked the row itself, and not changed it, has met one. With a rule,
// statements of our form are refused.

// leaveKept fails the keys of whose rows a statement has found some that it could lock, and not
// change. It returns the others.
func (a *attempt) leaveKept(
	ctx context.Context, keys []*openKey, r purged, kept *repo.KeptError,
) (others []*openKey) {
	var own []*openKey
	for _, k := range keys {
		if slices.Contains(r.Kept, k.key) {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	a.failKeys(ctx, a.step, own, kept, true)
	return others
}

// kept names the triggers and rules of the child that may keep rows, nil if it has none.
func (a *attempt) kept(ctx context.Context) (*repo.KeptError, error) {
	child := a.step.child
	by, err := child.Database.KeepingTriggers(ctx, child.Table(), actionOf(a.step.key) == deletes)
	if err != nil || len(by) == 0 {
		return nil, err
	}
	return &repo.KeptError{By: by}, nil
}
