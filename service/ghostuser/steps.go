package ghostuser

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// hands are what changes rows in the database of a catalogue: a sweeper, or in a dry run what
// counts them.
func (u *ghostUser) hands(c *repo.Catalog) *bulk.Removal {
	r := &bulk.Removal{Catalog: c, GoOn: u.goOn}
	if u.x.DryRun {
		r.RowChanger = &bulk.DryRun{Seen: u.seenIn(c.Database), GoOn: u.goOn, Count: u.count}
	} else {
		r.RowChanger = &bulk.Sweeper{Catalog: c, Sizes: u.sizes, Writer: u.x, GoOn: u.goOn, Count: u.count, Outside: u.outside}
	}
	return r
}

// seenIn are the rows of a database that a dry run has removed in thought.
func (r *ghostRun) seenIn(d *repo.Database) bulk.Seen {
	if r.seen[d] == nil {
		r.seen[d] = bulk.Seen{}
	}
	return r.seen[d]
}

// migrate brings all that refers to the user where it belongs, and deletes the user. What others
// have committed behind its back is found by the last look, and the user stays for one more round.
func (u *ghostUser) migrate(ctx context.Context) error {
	for left := true; left; {
		err := u.handOver(ctx)
		if err == nil {
			err = u.removeNamespace(ctx)
		}
		if err == nil {
			left, err = u.finish(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// handOver does the steps until a look finds no rows. Rows and tables that are locked by others end
// their line only.
func (u *ghostUser) handOver(ctx context.Context) error {
	for {
		left, err := u.left(ctx)
		if err != nil {
			return err
		}
		var locked error
		for _, step := range left {
			u.table, u.column = step.table, step.column
			err := u.apply(ctx, step)
			if bulk.IsLocked(err) || isLock(err) {
				locked = err
			} else if err != nil {
				return err
			}
		}
		u.table, u.column = "", ""
		// A dry run finds the same rows again.
		if locked != nil || len(left) == 0 || u.x.DryRun {
			return locked
		}
	}
}

// left are the steps that have rows, in order, by a look at all of them from the start.
func (u *ghostUser) left(ctx context.Context) (left []ghostStep, err error) {
	has := map[int]bool{}
	for _, c := range u.plan.catalogs {
		var places []int
		var rows []repo.Rows
		for i, step := range u.plan.steps {
			if step.catalog == c {
				places, rows = append(places, i), append(rows, step.rowsOf(u.UserID))
			}
		}
		some, err := bulk.Probe(ctx, c.Database, u.goOn, rows)
		if err != nil {
			return nil, err
		}
		for i, place := range places {
			has[place] = some[i]
		}
	}
	for i, step := range u.plan.steps {
		if has[i] {
			left = append(left, step)
		}
	}
	return left, nil
}

// apply does one step.
func (u *ghostUser) apply(ctx context.Context, step ghostStep) error {
	rows, hands := step.rowsOf(u.UserID), u.hands(step.catalog)
	var err error
	switch step.action(u.HardDelete) {
	case give:
		err = hands.Sweep(ctx, rows, repo.Change{Set: []string{step.column}, Value: &u.Ghost})
	case nullify:
		if step.required {
			return bulk.RequiredError(step.table, step.column)
		}
		err = hands.Sweep(ctx, rows, repo.Change{Set: []string{step.column}})
	case remove:
		err = hands.Remove(ctx, rows)
	case forbid:
		err = hands.Forbid(ctx, rows, bulk.StillReferencedError{Table: step.table, Column: step.column, Missing: step.missing})
	}
	return err
}

// namespace is the user's own, none where there are no such namespaces.
func (u *ghostUser) namespace() []repo.Rows {
	if !u.plan.namespaces {
		return nil
	}
	rows, _ := u.plan.catalogs[0].Rows("namespaces", "owner_id", repo.IDs(u.UserID)...)
	rows.Condition = "t.type = 'User'"
	return []repo.Rows{rows}
}

// removeNamespace is section 6.5.
func (u *ghostUser) removeNamespace(ctx context.Context) error {
	main, rows := u.plan.catalogs[0], u.namespace()
	has, err := bulk.Probe(ctx, main.Database, u.goOn, rows)
	if err != nil || !slices.Contains(has, true) {
		return err
	}
	if err := u.goOn(); err != nil {
		return err
	}
	projects, err := main.Database.HasPersonalProjects(ctx, u.queue, u.UserID, bulk.ProbeLimits())
	if err != nil {
		return err
	}
	if projects {
		return &run.ReasonedError{Reason: run.ReasonPersonalProjects, Text: "a project is left in the personal namespace"}
	}
	return u.hands(main).Remove(ctx, rows[0])
}

// finish is section 6.6. left says that the user has to stay: there is something again.
func (u *ghostUser) finish(ctx context.Context) (left bool, err error) {
	if !u.x.DryRun {
		left, err = u.deleteUser(ctx)
	}
	if err == nil && !left {
		u.count(ctx, "users", repo.Change{Delete: true}, 1)
	}
	return left, err
}

// deleteUser is the last transaction.
func (u *ghostUser) deleteUser(ctx context.Context) (left bool, err error) {
	groups, err := u.markedGroups(ctx)
	if err != nil {
		return false, err
	}
	if err := u.goOn(); err != nil {
		return false, err
	}
	all := make([]repo.Rows, 0, len(u.plan.steps)+1)
	for _, step := range u.plan.steps {
		all = append(all, step.rowsOf(u.UserID))
	}
	all = append(all, u.namespace()...)
	left, err = u.deleteWith(ctx, all)
	if err == nil && !left && len(groups) > 0 {
		u.log.WarnContext(ctx, "groups lose their deletion schedule with the user who marked them", "group_ids", groups)
	}
	return left, bulk.Deleted(u.plan.catalogs[0], err)
}

// deleteWith sends it, unless some of these rows are there.
func (u *ghostUser) deleteWith(ctx context.Context, rows []repo.Rows) (left bool, err error) {
	permit, err := u.x.Permit(ctx, u.x.Database, repo.Table{Name: "users"}, bulk.ProbeLimits())
	if err != nil {
		return false, err
	}
	defer permit.End(&err)
	return u.x.Database.DeleteMigratedUser(ctx, permit.Permit, u.queue, u.UserID, rows)
}

// markedGroups are groups whose schedule goes with the user.
func (u *ghostUser) markedGroups(ctx context.Context) ([]int64, error) {
	if !u.plan.schedules {
		return nil, nil
	}
	if err := u.goOn(); err != nil {
		return nil, err
	}
	return u.x.Database.ScheduledGroups(ctx, u.UserID, run.ReadLimits())
}
