package protection

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// A protection keeps more than its own target: a deletion that would include the protected row is
// refused before it starts. The climb from the few protected rows finds such deletions. It follows
// foreign keys with ON DELETE CASCADE, the deletions of jobs, and inheritance. It cannot follow
// triggers and rules. The post-condition of [pg.Transaction] is the last check.

// baseCascades returns those of groups and projects, and of the user's namespace and queue row.
func baseCascades() []pg.JobCascade {
	all := []pg.JobCascade{
		{Child: "namespaces", Column: "parent_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "namespaces", Column: "owner_id", Parent: "users", ParentColumn: "id",
			OnlyColumn: "type", Only: "= 'User'",
		},
		{Child: "projects", Column: "namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "namespaces", Column: "id", Parent: "projects", ParentColumn: "project_namespace_id",
			OnlyColumn: "type", Only: "= 'Project'",
		},
		{Child: "members", Column: "member_namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "users", Column: "id", Parent: "members", ParentColumn: "user_id",
			OnlyColumn: "user_type", Only: "= 6", Queued: true,
		},
		{Child: "namespace_details", Column: "namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{Child: "group_deletion_schedules", Column: "group_id", Parent: "namespaces", ParentColumn: "id"},
		{Child: "ghost_user_migrations", Column: "user_id", Parent: "users", ParentColumn: "id"},
		{Child: "users_ghost_user_migrations", Column: "user_id", Parent: "users", ParentColumn: "id"},
	}
	for i := range all {
		all[i].Contains = true
	}
	return all
}

const inForceTargetsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE ` + pg.ActiveSQL + ` ORDER BY p.kind, p.id`

// target is a user or group.
type target struct {
	Kind string
	ID   int64
}

// Keeping has the users and groups that protections keep: their own targets, and others that would
// be deleted with them.
type Keeping map[target]*pg.Protection

// Of returns the protection that keeps a user or group, nil if none does.
func (k Keeping) Of(kind string, id int64) *pg.Protection { return k[target{kind, id}] }

// steps returns the cascades of jobs. begun leaves out jobs that delete other targets, as they
// decide for themselves.
func steps(d *pg.Database, started bool) []pg.JobCascade {
	return slices.DeleteFunc(slices.Concat(baseCascades(), d.JobCascades), func(c pg.JobCascade) bool {
		return started && c.Queued
	})
}

// keptKeys contains the keys in rows of a child that protections keep.
type keptKeys struct {
	child *lfk.Child
	found map[lfk.Key]*pg.Protection
}

// keep finds the users and groups that protections in force keep, in a transaction.
func keep(
	ctx context.Context, tx *pg.Changing, steps []pg.JobCascade, keys ...keptKeys,
) (Keeping, error) {
	rows, _ := tx.Query(ctx, inForceTargetsSQL)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pg.Protection])
	if err != nil || len(all) == 0 {
		return nil, err
	}
	k := &keeper{
		tx: tx, own: map[catalog.Table][]*cascade{}, above: map[catalog.Table][]catalog.Table{}, below: map[catalog.Table][]catalog.Table{},
		kinds: map[catalog.Table]string{}, kept: Keeping{}, seen: map[string]bool{},
	}
	if err := k.read(ctx, tx.Database, steps, keys); err != nil {
		return nil, err
	}
	return k.kept, k.climb(ctx, all)
}

// Keeping reads the users and groups that protections in force keep.
func (d Protections) Keeping(ctx context.Context, l fencing.Limits) (Keeping, error) {
	return keeping(ctx, d.db, steps(d.db, false), l)
}

// KeptKeys reads the recorded keys in rows of children that PostgreSQL cannot delete without a
// protected row, each with its protection, in the children's order. It ignores triggers. A child
// whose statement fails, as for a missing column, has none. Its deletions also fail.
func (d Protections) KeptKeys(
	ctx context.Context, children []*lfk.Child, l fencing.Limits,
) (kept []map[lfk.Key]*pg.Protection, err error) {
	var keys []keptKeys
	for _, c := range children {
		found := map[lfk.Key]*pg.Protection{}
		kept, keys = append(kept, found), append(keys, keptKeys{c, found})
	}
	_, err = keeping(ctx, d.db, nil, l, keys...)
	refused, ok := errors.AsType[*dberr.Error](err)
	switch {
	case !ok || refused.SQLState == "" || refused.Class() == dberr.ClassLock || refused.Class() == dberr.ClassTimeout:
		return kept, err
	case len(children) == 1:
		_, err = keeping(ctx, d.db, nil, l)
		return []map[lfk.Key]*pg.Protection{{}}, err
	}
	half := len(children) / 2
	if kept, err = d.KeptKeys(ctx, children[:half], l); err != nil {
		return nil, err
	}
	others, err := d.KeptKeys(ctx, children[half:], l)
	return append(kept, others...), err
}

// keeping runs keep in its own transaction, for reads. It takes one statement if nothing is
// protected, and none in a database without protections.
func keeping(
	ctx context.Context, d *pg.Database, steps []pg.JobCascade, l fencing.Limits, keys ...keptKeys,
) (kept Keeping, err error) {
	if known, err := pg.ProtectedTargets(ctx, d); err != nil || known.Check == "" {
		return nil, err
	}
	q := pg.NewQuery("find protections", inForceTargetsSQL)
	found, err := pg.ReadRows(ctx, d, l, q, pgx.RowToStructByPos[pg.Protection])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	l.ReadOnly = true
	err = pg.Transaction(ctx, d, "find rows that protections keep", fencing.Permit{Limits: l},
		func(ctx context.Context, tx *pg.Changing) (err error) {
			kept, err = keep(ctx, tx, steps, keys...)
			return err
		})
	return kept, err
}
