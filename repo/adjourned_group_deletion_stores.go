package repo

import (
	"context"
	"fmt"
)

// groupEssentials is what of the application schema groups cannot be worked on without.
func groupEssentials() []Reference {
	return referencesOf(
		"users", "id user_type state admin",
		"namespaces", "id type parent_id name path",
		"routes", "id source_type source_id path name",
		"members", "id source_type source_id user_id access_level",
		"group_group_links", "shared_group_id shared_with_group_id group_access",
		"projects", "id namespace_id",
	)
}

// GroupStores looks where the marks are kept, and what else there is. A table that must not be read is a
// [ErrForbidden].
func (d *Database) GroupStores(ctx context.Context) (s GroupStores, err error) {
	essential := groupEssentials()
	optional := map[*bool][]Reference{
		&s.legacy:    referencesOf("group_deletion_schedules", "group_id user_id marked_for_deletion_on"),
		&s.schedules: referencesOf("group_deletion_schedules", "group_id"),
		&s.details:   referencesOf("namespace_details", "namespace_id"),
		&s.metadata:  referencesOf("namespace_details", "namespace_id state_metadata"),
		&s.modern:    referencesOf("namespace_details", "namespace_id state_metadata deletion_scheduled_at"),
		&s.state:     referencesOf("namespaces", "state"),
		&s.period:    referencesOf("application_settings", "deletion_adjourned_period"),
	}
	all := essential
	for _, columns := range optional {
		all = append(all, columns...)
	}
	p, err := d.presence(ctx, all, append(membershipOptions(), valueOption("group_group_links", "l", "expires_at", "NULL::date"),
		touchOption("routes", utcNow), touchOption("namespaces", utcNow), newestSettings())...)
	if err != nil {
		return s, err
	}
	for feature, columns := range optional {
		*feature = p.has(columns...)
	}
	s.fillings, s.PassedOver, s.Missing = p.fillings, p.passedOver, p.lacks(essential...)
	if s.Missing == "" {
		// Else nobody would be active, and groups be restored that are to go.
		s.Missing, err = p.unfit(ctx, Reference{"users", "state"}, "active")
	}
	if s.Missing == "" && !s.legacy && !s.modern {
		s.Missing = fmt.Sprintf("database %s has neither the table group_deletion_schedules nor the columns deletion_scheduled_at and state_metadata of namespace_details", d.Name)
	}
	return s, err
}
