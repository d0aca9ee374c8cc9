package gitlab

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// UserFeatures are the existing tables and columns about users in main.
type UserFeatures struct {
	// Missing is why users cannot be deleted, MissingTokens why their tokens cannot be judged. Each is
	// "" if nothing is missing.
	Missing, MissingTokens string
	// MissingOptional names the other missing ones.
	MissingOptional string
	// organizations: users.organization_id. owners: organization_users. authorizations:
	// project_authorizations.
	organizations, owners, authorizations bool
	// members who can leave, groups that they may own, projects in personal namespaces.
	members, groups, projects bool
	// setting: application_settings.resource_access_tokens_settings.
	setting bool
	// ghosts is the queue of users whose records move to the ghost user, ghostColumns are its written
	// columns.
	ghosts, ghostColumns string
	// fillings are pairs for [stmt.Fill] that put the existing columns into statements.
	fillings []string
}

// userEssentials are required to delete users, tokenEssentials to judge tokens.
func userEssentials() []catalog.Reference { return catalog.ReferencesOf("users", "id user_type state") }

// tokenEssentials are required to judge tokens.
func tokenEssentials() []catalog.Reference {
	return catalog.ReferencesOf("personal_access_tokens", "id user_id revoked expires_at updated_at")
}

// optionalUserColumns are the columns that features require.
func optionalUserColumns(f *UserFeatures) map[*bool][]catalog.Reference {
	return map[*bool][]catalog.Reference{
		&f.organizations:  catalog.ReferencesOf("users", "organization_id"),
		&f.owners:         catalog.ReferencesOf("organization_users", "user_id organization_id access_level"),
		&f.authorizations: catalog.ReferencesOf("project_authorizations", "user_id"),
		&f.members:        catalog.ReferencesOf("members", "id user_id"),
		&f.groups: catalog.ReferencesOf("members", "user_id source_id source_type access_level",
			"namespaces", "id type parent_id"),
		&f.projects: catalog.ReferencesOf("namespaces", "id type owner_id", "projects", "id namespace_id"),
		&f.setting:  catalog.ReferencesOf("application_settings", "resource_access_tokens_settings"),
	}
}

// userReferences are all columns that are read.
func userReferences() []catalog.Reference {
	all := slices.Concat(userEssentials(), tokenEssentials(),
		queueColumns("ghost_user_migrations"), queueColumns("users_ghost_user_migrations"))
	for _, columns := range optionalUserColumns(new(UserFeatures)) {
		all = append(all, columns...)
	}
	return all
}

// UserUses are how the deletion of users, and of their tokens, uses main, without their projects.
func UserUses() []catalog.Use {
	return []catalog.Use{
		{Table: "users", Rights: catalog.ToChange, Columns: "user_type"},
		{Table: "personal_access_tokens", Rights: catalog.ToChange, Columns: "user_id"},
		{Table: "members", Rights: catalog.MaySelect | catalog.MayDelete, Columns: "user_id source_id"},
		{Table: "project_authorizations", Rights: catalog.MaySelect | catalog.MayDelete, Columns: "user_id"},
		{Table: "ghost_user_migrations", Rights: catalog.MaySelect | catalog.MayInsert, Columns: "user_id"},
		{Table: "users_ghost_user_migrations", Rights: catalog.MaySelect | catalog.MayInsert, Columns: "user_id"},
		{Table: "organization_users", Rights: catalog.ToRead, Columns: "user_id organization_id"},
		{Table: "namespaces", Rights: catalog.ToRead, Columns: "owner_id parent_id"},
		{Table: "projects", Rights: catalog.ToRead, Columns: "namespace_id"},
		{Table: "application_settings", Rights: catalog.ToRead},
	}
}

// UserFeatures reads the catalogue. If our role cannot read a table, the error is
// [dberr.ErrForbidden].
func (d Users) UserFeatures(ctx context.Context) (f UserFeatures, err error) {
	users, tokens, optional := userEssentials(), tokenEssentials(), optionalUserColumns(&f)
	options := append(membershipOptions(), catalog.TouchOption("users", catalog.UtcNow), catalog.NewestSettings(),
		catalog.Option{Column: catalog.Reference{Table: "users", Column: "admin"}, Placeholder: "{users.admin}", Here: "admin", Otherwise: "false"})
	p, err := catalog.Present(ctx, d.db, userReferences(), options...)
	if err != nil {
		return f, err
	}
	for feature, columns := range optional {
		*feature = p.Has(columns...)
	}
	f.Missing, f.MissingTokens = p.Missing(ctx, users...), p.Missing(ctx, tokens...)
	f.fillings, f.MissingOptional = p.Fillings, p.MissingOptional
	unsuitable, err := p.Unsuitable(ctx, catalog.Reference{Table: "users", Column: "state"}, "blocked")
	if err != nil {
		return f, err
	}
	var noQueue string
	f.ghosts, f.ghostColumns, noQueue = findQueue(ctx, p)
	f.Missing = cmp.Or(f.Missing, unsuitable, noQueue)
	return f, nil
}

// queueColumns are the written columns of the queue, its key first.
func queueColumns(queue string) []catalog.Reference {
	return catalog.ReferencesOf(queue, "user_id initiator_user_id hard_delete created_at updated_at user_type")
}

// findQueue returns the queue with its columns. missing names the missing key column, "" if none.
// The other results are then empty.
func findQueue(ctx context.Context, p catalog.Presence) (queue, columns, missing string) {
	queue = "ghost_user_migrations"
	if table := ghostTable(p.Catalog); table != nil {
		queue = table.Name
	}
	all := queueColumns(queue)
	var here []string
	for _, c := range all {
		if p.Has(c) {
			here = append(here, c.Column)
		}
	}
	if missing = p.Missing(ctx, all[0]); missing != "" {
		return "", "", missing
	}
	return queue, strings.Join(here, ", "), ""
}

// fill puts the existing columns into a statement.
func (f UserFeatures) fill(sql string, pairs ...string) string {
	sql = stmt.Fill(sql, "{direct}", directMembershipSQL, "{going}", deletionPendingSQL)
	return stmt.Fill(sql, append(append(pairs, "{ghosts}", stmt.Quote(f.ghosts)), f.fillings...)...)
}

// namesSQL: LIMIT keeps the look-ups by index, whatever the tables are like.
const (
	userNamesSQL = `
SELECT i.id, u.name FROM unnest($1::bigint[]) AS i (id)
CROSS JOIN LATERAL (SELECT x.username AS name FROM users x WHERE x.id = i.id LIMIT 1) u
WHERE u.name IS NOT NULL`

	groupNamesSQL = `
SELECT i.id, r.name FROM unnest($1::bigint[]) AS i (id)
CROSS JOIN LATERAL (
  SELECT x.path AS name FROM routes x
  WHERE x.source_id = i.id AND x.source_type = 'Namespace' LIMIT 1) r
WHERE r.name IS NOT NULL`
)

// Names reads usernames or, for groups, full paths, if these columns exist. ids are of users, or of
// groups if kind is [control.KindGroup]. An id without a name is not in the result.
func (d Users) Names(
	ctx context.Context, kind string, ids []int64, l fencing.Limits,
) (map[int64]string, error) {
	sql, needs := userNamesSQL, catalog.ReferencesOf("users", "id username")
	if kind == control.KindGroup {
		sql, needs = groupNamesSQL, catalog.ReferencesOf("routes", "source_id source_type path")
	}
	p, err := catalog.Present(ctx, d.db, needs)
	if err != nil || len(ids) == 0 || !p.Has(needs...) {
		return nil, err
	}
	type pair struct {
		ID   int64
		Name string
	}
	q := pg.NewQuery("read the names of candidates", sql, ids)
	pairs, err := pg.ReadRows(ctx, d.db, l, q, pgx.RowToStructByPos[pair])
	names := map[int64]string{}
	for _, p := range pairs {
		names[p.ID] = p.Name
	}
	return names, err
}
