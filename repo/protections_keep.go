package repo

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A protection keeps more than its own target: whatever would take the protected row along is refused
// before anything is deleted. What that is, is found upwards from the protected rows, which are few: by
// foreign keys with ON DELETE CASCADE, by what jobs delete themselves, and by inheritance. Triggers and
// rules cannot be followed. Behind all this the post-condition of [Database.transaction] stays.

// JobCascade is what jobs do with rows of Child when rows of Parent are deleted to which they refer: they
// delete them. It is for what PostgreSQL does not know, or is not asked to do.
type JobCascade struct {
	Child, Column, Parent, ParentColumn string
	// OnlyColumn limits it to the rows in which that column is Only, in SQL; "": to none.
	OnlyColumn, Only string
	// Spared: the rows are not deleted. They have been given to another parent before, even where a
	// foreign key would cascade.
	Spared bool
	// queued: a job of its own deletes the row of Child. contains: Child is a part of Parent, which no
	// message has to explain.
	queued, contains bool
}

// baseCascades are those of groups and projects, and of the user's own namespace and queue row.
func baseCascades() []JobCascade {
	all := []JobCascade{
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
			OnlyColumn: "user_type", Only: "= 6", queued: true,
		},
		{Child: "namespace_details", Column: "namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{Child: "group_deletion_schedules", Column: "group_id", Parent: "namespaces", ParentColumn: "id"},
		{Child: "ghost_user_migrations", Column: "user_id", Parent: "users", ParentColumn: "id"},
		{Child: "users_ghost_user_migrations", Column: "user_id", Parent: "users", ParentColumn: "id"},
	}
	for i := range all {
		all[i].contains = true
	}
	return all
}

const inForceTargetsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE ` + activeSQL + ` ORDER BY p.kind, p.id`

// target is a user or group.
type target struct {
	kind string
	id   int64
}

// Keeping are the users and groups that protections keep: their own, and those of others that would be
// deleted with them.
type Keeping map[target]*Protection

// Of is the protection that keeps a user or group, nil if none does.
func (k Keeping) Of(kind string, id int64) *Protection { return k[target{kind, id}] }

// steps are what jobs delete. begun: jobs that delete other targets do not count, as they decide for
// themselves.
func (d *Database) steps(begun bool) []JobCascade {
	return slices.DeleteFunc(slices.Concat(baseCascades(), d.JobCascades), func(c JobCascade) bool {
		return begun && c.queued
	})
}

// keptKeys are the keys in rows of a child that protections keep.
type keptKeys struct {
	child *Child
	found map[Key]*Protection
}

// keep finds what the protections in force keep, in a transaction.
func keep(
	ctx context.Context, tx *changing, steps []JobCascade, keys ...keptKeys,
) (Keeping, error) {
	rows, _ := tx.Query(ctx, inForceTargetsSQL)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Protection])
	if err != nil || len(all) == 0 {
		return nil, err
	}
	k := &keeper{
		tx: tx, own: map[Table][]*cascade{}, above: map[Table][]Table{}, below: map[Table][]Table{},
		kinds: map[Table]string{}, kept: Keeping{}, seen: map[string]bool{},
	}
	if err := k.read(ctx, tx.database, steps, keys); err != nil {
		return nil, err
	}
	return k.kept, k.climb(ctx, all)
}

// Keeping reads what the protections in force keep.
func (d *Database) Keeping(ctx context.Context, l Limits) (Keeping, error) {
	return d.keeping(ctx, d.steps(false), l)
}

// KeptKeys reads the recorded keys in rows of children that PostgreSQL cannot delete without a protected
// row, each with the protection, in the order of the children. What only triggers delete is not found. A
// child that fails a statement, as without a column of its definition, has none: its deletions fail, too.
func (d *Database) KeptKeys(
	ctx context.Context, children []*Child, l Limits,
) (kept []map[Key]*Protection, err error) {
	var keys []keptKeys
	for _, c := range children {
		found := map[Key]*Protection{}
		kept, keys = append(kept, found), append(keys, keptKeys{c, found})
	}
	_, err = d.keeping(ctx, nil, l, keys...)
	refused, ok := errors.AsType[*Error](err)
	switch {
	case !ok || refused.SQLState == "" || refused.Class() == ClassLock || refused.Class() == ClassTimeout:
		return kept, err
	case len(children) == 1:
		_, err = d.keeping(ctx, nil, l)
		return []map[Key]*Protection{{}}, err
	}
	half := len(children) / 2
	if kept, err = d.KeptKeys(ctx, children[:half], l); err != nil {
		return nil, err
	}
	others, err := d.KeptKeys(ctx, children[half:], l)
	return append(kept, others...), err
}

// keeping is keep in a transaction of its own, for reads. It takes one statement where nothing is
// protected, and none in a database without protections.
func (d *Database) keeping(
	ctx context.Context, steps []JobCascade, l Limits, keys ...keptKeys,
) (kept Keeping, err error) {
	if known, err := d.protectedTargets(ctx); err != nil || known.check == "" {
		return nil, err
	}
	q := newQuery("look for protections", inForceTargetsSQL)
	found, err := readRows(ctx, d, l, q, pgx.RowToStructByPos[Protection])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	l.ReadOnly = true
	err = d.transaction(ctx, "look for what protections keep", Permit{Limits: l},
		func(ctx context.Context, tx *changing) (err error) {
			kept, err = keep(ctx, tx, steps, keys...)
			return err
		})
	return kept, err
}
