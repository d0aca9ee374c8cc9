package repo

import (
	"context"
	"fmt"
	"strings"
)

// UserFeatures says which of the tables and columns about users there are in main (schema.md section 9).
type UserFeatures struct {
	// MissingUsers, MissingTokens and MissingQueue say what keeps users from being worked on, their tokens from being
	// judged, and their records from being handed to the ghost user; each "" if nothing does.
	MissingUsers, MissingTokens, MissingQueue string
	// organizations: users.organization_id. owners: organization_users. authorizations: project_authorizations.
	organizations, owners, authorizations bool
	// members, and namespaces, and projects in them.
	members, namespaces, projects bool
	// setting: application_settings.resource_access_tokens_settings.
	setting bool
	// ghosts is the queue of users whose records go to the ghost user; ghostType: it has a column user_type.
	ghosts    string
	ghostType bool
}

// UserFeatures looks at the catalogue. A table that we may not read is [ErrForbidden].
func (d *Database) UserFeatures(ctx context.Context) (f UserFeatures, err error) {
	users := referencesOf("users", "id user_type state")
	tokens := referencesOf("personal_access_tokens", "id user_id revoked expires_at updated_at")
	ghosts, oldGhosts := referencesOf("ghost_user_migrations", "user_id user_type"), referencesOf("users_ghost_user_migrations", "user_id user_type")
	optional := referencesOf("users", "organization_id", "organization_users", "user_id", "project_authorizations", "user_id",
		"members", "user_id", "namespaces", "owner_id", "projects", "namespace_id", "application_settings", "resource_access_tokens_settings")
	all := append(append(append(append([]Reference{}, users...), tokens...), ghosts...), append(oldGhosts, optional...)...)
	present, err := d.present(ctx, all)
	if err != nil {
		return f, err
	}
	here := map[Reference]bool{}
	for _, r := range present {
		here[r] = true
	}
	for i, has := range []*bool{&f.organizations, &f.owners, &f.authorizations, &f.members, &f.namespaces, &f.projects, &f.setting} {
		*has = here[optional[i]]
	}
	f.MissingUsers, f.MissingTokens, f.MissingQueue = d.lacks(here, users...), d.lacks(here, tokens...), d.lacks(here, ghosts[0])
	switch {
	case here[ghosts[0]]:
		f.ghosts, f.ghostType = ghosts[0].Table, here[ghosts[1]]
	case here[oldGhosts[0]]:
		f.ghosts, f.ghostType, f.MissingQueue = oldGhosts[0].Table, here[oldGhosts[1]], ""
	}
	return f, nil
}

// lacks names the first of the columns that is not here.
func (d *Database) lacks(here map[Reference]bool, columns ...Reference) string {
	for _, c := range columns {
		if !here[c] {
			return fmt.Sprintf("database %s has no table %s with a column %s in the application schema", d.Name, c.Table, c.Column)
		}
	}
	return ""
}

// String lists what there is of what not every version has, for the log.
func (f UserFeatures) String() string {
	var found []string
	for _, feature := range []struct {
		name string
		here bool
	}{
		{"users.organization_id", f.organizations},
		{"organization_users", f.owners},
		{"project_authorizations", f.authorizations},
		{"members", f.members},
		{"namespaces", f.namespaces},
		{"projects", f.projects},
		{tokenSettingColumn, f.setting},
		{"personal_access_tokens", f.MissingTokens == ""},
		{f.ghosts, f.ghosts != ""},
		{f.ghosts + ".user_type", f.ghostType},
	} {
		if feature.here {
			found = append(found, feature.name)
		}
	}
	return strings.Join(found, ", ")
}
