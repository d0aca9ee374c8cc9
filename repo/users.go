package repo

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// UserFeatures says which of the tables and columns about users there are in main.
type UserFeatures struct {
	// Missing says what keeps users from being deleted, MissingTokens what keeps their tokens from
	// being judged; each "" if nothing does.
	Missing, MissingTokens string
	// MissingOptional names what else is missing.
	MissingOptional string
	// organizations: users.organization_id. owners: organization_users. authorizations:
	// project_authorizations.
	organizations, owners, authorizations bool
	// members who can leave, groups that they may own, projects in personal namespaces.
	members, groups, projects bool
	// setting: application_settings.resource_access_tokens_settings.
	setting bool
	// ghosts is the queue of users whose records go to the ghost user, ghostColumns are those of it
	// that are written.
	ghosts, ghostColumns string
	fillings             []string
}

// userEssentials are what no user can be deleted without, tokenEssentials what tokens cannot be
// judged without.
func userEssentials() []Reference { return referencesOf("users", "id user_type state") }

func tokenEssentials() []Reference {
	return referencesOf("personal_access_tokens", "id user_id revoked expires_at updated_at")
}

// optionalUserColumns are those that features need.
func optionalUserColumns(f *UserFeatures) map[*bool][]Reference {
	return map[*bool][]Reference{
		&f.organizations:  referencesOf("users", "organization_id"),
		&f.owners:         referencesOf("organization_users", "user_id organization_id access_level"),
		&f.authorizations: referencesOf("project_authorizations", "user_id"),
		&f.members:        referencesOf("members", "id user_id"),
		&f.groups: referencesOf("members", "user_id source_id source_type access_level",
			"namespaces", "id type parent_id"),
		&f.projects: referencesOf("namespaces", "id type owner_id", "projects", "id namespace_id"),
		&f.setting:  referencesOf("application_settings", "resource_access_tokens_settings"),
	}
}

// userReferences are all columns that are looked for.
func userReferences() []Reference {
	all := slices.Concat(userEssentials(), tokenEssentials(),
		queueColumns("ghost_user_migrations"), queueColumns("users_ghost_user_migrations"))
	for _, columns := range optionalUserColumns(new(UserFeatures)) {
		all = append(all, columns...)
	}
	return all
}

// UserUses are what the deletion of users, and of their tokens, does with main, without their
// projects.
func UserUses() []Use {
	return []Use{
		{Table: "users", Rights: ToChange, Columns: "user_type"},
		{Table: "personal_access_tokens", Rights: ToChange, Columns: "user_id"},
		{Table: "members", Rights: MaySelect | MayDelete, Columns: "user_id source_id"},
		{Table: "project_authorizations", Rights: MaySelect | MayDelete, Columns: "user_id"},
		{Table: "ghost_user_migrations", Rights: MaySelect | MayInsert, Columns: "user_id"},
		{Table: "users_ghost_user_migrations", Rights: MaySelect | MayInsert, Columns: "user_id"},
		{Table: "organization_users", Rights: ToRead, Columns: "user_id organization_id"},
		{Table: "namespaces", Rights: ToRead, Columns: "owner_id parent_id"},
		{Table: "projects", Rights: ToRead, Columns: "namespace_id"},
		{Table: "application_settings", Rights: ToRead},
	}
}

// UserFeatures looks at the catalogue. A table that we may not read is [ErrForbidden].
func (d *Database) UserFeatures(ctx context.Context) (f UserFeatures, err error) {
	users, tokens, optional := userEssentials(), tokenEssentials(), optionalUserColumns(&f)
	options := append(membershipOptions(), touchOption("users", utcNow), newestSettings(),
		option{Reference{"users", "admin"}, "{users.admin}", "admin", "false"})
	p, err := d.presence(ctx, userReferences(), options...)
	if err != nil {
		return f, err
	}
	for feature, columns := range optional {
		*feature = p.has(columns...)
	}
	f.Missing, f.MissingTokens = p.missing(ctx, users...), p.missing(ctx, tokens...)
	f.fillings, f.MissingOptional = p.fillings, p.missingOptional
	unfit, err := p.unsuitable(ctx, Reference{"users", "state"}, "blocked")
	if err != nil {
		return f, err
	}
	var noQueue string
	f.ghosts, f.ghostColumns, noQueue = findQueue(ctx, p)
	f.Missing = cmp.Or(f.Missing, unfit, noQueue)
	return f, nil
}

// queueColumns are the columns of the queue that are written, its key first.
func queueColumns(queue string) []Reference {
	return referencesOf(queue, "user_id initiator_user_id hard_delete created_at updated_at user_type")
}

// findQueue is the queue with its columns.
func findQueue(ctx context.Context, p presence) (queue, columns, missing string) {
	queue = "ghost_user_migrations"
	if table := p.ghostTable(); table != nil {
		queue = table.Name
	}
	all := queueColumns(queue)
	var here []string
	for _, c := range all {
		if p.has(c) {
			here = append(here, c.Column)
		}
	}
	if missing = p.missing(ctx, all[0]); missing != "" {
		return "", "", missing
	}
	return queue, strings.Join(here, ", "), ""
}

// fill puts what there is into a statement.
func (f UserFeatures) fill(sql string, pairs ...string) string {
	sql = fill(sql, "{direct}", directMembershipSQL, "{going}", goingSQL)
	return fill(sql, append(append(pairs, "{ghosts}", quote(f.ghosts)), f.fillings...)...)
}
