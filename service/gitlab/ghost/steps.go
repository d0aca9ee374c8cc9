package ghost

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// removal returns the removal for the database of a catalogue. In a dry run it only counts rows.
func (u *user) removal(c *catalog.Catalog) *bulk.Removal {
	r := &bulk.Removal{Catalog: c, CheckStop: u.checkStop}
	if !u.x.DryRun {
		r.RowChanger = &bulk.Sweeper{
			Catalog: c, Sizes: u.sizes, Writer: u,
			CheckStop: u.checkStop, Count: u.count, Outside: u.logOutside,
		}
		return r
	}
	if u.plan != nil {
		r.RowChanger = bulk.ForPlan(u.plan, c)
		return r
	}
	if u.seen[repo.Of(c.Database)] == nil {
		u.seen[repo.Of(c.Database)] = bulk.Seen{}
	}
	r.RowChanger = &bulk.DryRun{Seen: u.seen[repo.Of(c.Database)], CheckStop: u.checkStop, Count: u.count}
	return r
}

// handOver does steps 3 to 5 of the package comment.
func (u *user) handOver(ctx context.Context) error {
	for referred := true; referred; {
		err := u.clearReferences(ctx)
		if err == nil {
			err = u.removeNamespace(ctx)
		}
		if err == nil {
			referred, err = u.deleteUser(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clearReferences works the columns until a probe finds no more rows. Rows and tables locked by
// others end the work on their column only: the other columns come first.
func (u *user) clearReferences(ctx context.Context) error {
	for {
		steps, err := u.referring(ctx)
		if err != nil {
			return err
		}
		var locked error
		for _, s := range steps {
			u.table, u.column = s.table, s.column
			err := u.apply(ctx, s)
			if isLocked(err) {
				locked = err
			} else if err != nil {
				return err
			}
		}
		u.table, u.column = "", ""
		// A dry run would find the same rows again.
		if locked != nil || len(steps) == 0 || u.x.DryRun {
			return locked
		}
	}
}

// referring returns the steps whose columns refer to the user, in order.
func (u *user) referring(ctx context.Context) ([]*step, error) {
	has := map[*step]bool{}
	for _, c := range u.references.catalogs {
		var asked []*step
		var rows []rowset.Rows
		for _, s := range u.references.steps {
			if s.catalog == c {
				asked, rows = append(asked, s), append(rows, s.rowsOf(u.UserID))
			}
		}
		found, err := bulk.Probe(ctx, repo.Of(c.Database), u.checkStop, rows)
		if err != nil {
			return nil, err
		}
		for i, s := range asked {
			has[s] = found[i]
		}
	}
	steps := slices.Clone(u.references.steps)
	return slices.DeleteFunc(steps, func(s *step) bool { return !has[s] }), nil
}

// apply changes all rows of a step, in bounded statements.
func (u *user) apply(ctx context.Context, s *step) error {
	rows, removal := s.rowsOf(u.UserID), u.removal(s.catalog)
	switch s.action(u.HardDelete) {
	case give:
		return removal.Sweep(ctx, rows, rowset.Change{Set: []string{s.column}, Value: &u.Ghost})
	case nullify:
		if s.required {
			return bulk.RequiredError(s.table, s.column)
		}
		return removal.Sweep(ctx, rows, rowset.Change{Set: []string{s.column}})
	case remove:
		return removal.Remove(ctx, rows)
	case forbid:
	}
	return removal.FailIfAny(ctx, rows,
		&bulk.StillReferencedError{Table: s.table, Column: s.column, Missing: s.missing})
}

// namespace returns the user's personal namespace, or none.
func (u *user) namespace() []rowset.Rows {
	if !u.references.namespaces {
		return nil
	}
	rows, _ := rowset.RowsOf(u.references.catalogs[0], "namespaces", "owner_id", rowset.IDs(u.UserID)...)
	rows.Condition = "t.type = 'User'"
	return []rowset.Rows{rows}
}

// removeNamespace removes the personal namespace with its dependants, but no projects: the
// requester of a user's deletion must decide about those.
func (u *user) removeNamespace(ctx context.Context) error {
	main, rows := u.references.catalogs[0], u.namespace()
	has, err := bulk.Probe(ctx, repo.Of(main.Database), u.checkStop, rows)
	if err != nil || !slices.Contains(has, true) {
		return err
	}
	if err := u.checkStop(); err != nil {
		return err
	}
	// A plan has counted them: the job delete_user removes them first.
	if u.plan == nil {
		has, err := u.hasPersonalProjects(ctx)
		if err != nil {
			return err
		}
		if has {
			return &fault.ReasonedError{Reason: reasonPersonalProjects, Text: personalProjects}
		}
	}
	return u.removal(main).Remove(ctx, rows[0])
}

const personalProjects = "a project remains in the personal namespace"

// hasPersonalProjects reports whether a project remains in the user's namespace.
func (u *user) hasPersonalProjects(ctx context.Context) (bool, error) {
	return repo.Of(u.references.catalogs[0].Database).Ghosts.HasPersonalProjects(
		ctx, u.references.queue, u.UserID, bulk.ProbeLimits())
}

// deleteUser deletes the user and the row of the queue. referred: the user stays, because rows that
// refer to it were committed meanwhile.
func (u *user) deleteUser(ctx context.Context) (referred bool, err error) {
	if !u.x.DryRun {
		referred, err = u.deleteRows(ctx)
	}
	if err == nil && !referred {
		if u.plan != nil {
			return false, u.planRow(ctx)
		}
		u.count(ctx, "users", rowset.Change{Delete: true}, 1)
	}
	return referred, err
}

// deleteRows warns if the foreign key of group_deletion_schedules deletes rows with the user: no
// job deletes those groups any more.
func (u *user) deleteRows(ctx context.Context) (referred bool, err error) {
	groups, err := u.markedGroups(ctx)
	if err == nil {
		err = u.checkStop()
	}
	if err != nil {
		return false, err
	}
	referred, err = u.deleteUnlessReferred(ctx)
	if err == nil && !referred && len(groups) > 0 {
		u.log.WarnContext(ctx, "user deletion also removed group deletion schedules",
			"group_ids", groups)
	}
	return referred, bulk.Deleted(u.references.catalogs[0], err)
}

// deleteUnlessReferred deletes the user and the queue row in one fenced transaction. If a row of
// any step or of the namespace refers to the user, nothing changes and referred is true.
func (u *user) deleteUnlessReferred(ctx context.Context) (referred bool, err error) {
	rows := u.namespace()
	for _, s := range u.references.steps {
		rows = append(rows, s.rowsOf(u.UserID))
	}
	permit, err := u.x.Permit(ctx, u.x.Database, catalog.Table{Name: "users"}, bulk.ProbeLimits())
	if err != nil {
		return false, err
	}
	defer permit.End(&err)
	return u.x.Database.Ghosts.DeleteMigratedUser(ctx, permit.Permit, u.references.queue, u.UserID, rows)
}

// markedGroups returns the groups that the user has marked for deletion.
func (u *user) markedGroups(ctx context.Context) ([]int64, error) {
	if !u.references.schedules {
		return nil, nil
	}
	if err := u.checkStop(); err != nil {
		return nil, err
	}
	return u.x.Database.Ghosts.ScheduledGroups(ctx, u.UserID, run.ReadLimits())
}

// reasonPersonalProjects belongs to users who are kept for their projects.
const reasonPersonalProjects = "PERSONAL_PROJECTS"
