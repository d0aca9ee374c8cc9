package repo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// groupEssentials is what of the application schema groups cannot be worked on without (schema.md section 9).
func groupEssentials() map[string][]string {
	return map[string][]string{
		"users":             {"id", "user_type", "state"},
		"namespaces":        {"id", "type", "parent_id", "name", "path"},
		"routes":            {"source_type", "source_id", "path", "name"},
		"members":           {"source_type", "source_id", "user_id", "access_level"},
		"group_group_links": {"shared_group_id", "shared_with_group_id", "group_access"},
		"projects":          {"id", "namespace_id"},
	}
}

// groupOptions is what they are worked on with where it is there.
func groupOptions() map[string][]string {
	return map[string][]string{
		"namespaces":               {"state"},
		"group_deletion_schedules": {"group_id", "user_id", "marked_for_deletion_on"},
		"namespace_details":        {"namespace_id", "state_metadata", "deletion_scheduled_at"},
		"application_settings":     {"deletion_adjourned_period"},
	}
}

// GroupStores looks where the marks are kept, and what else there is. A table that must not be read is a
// [ErrForbidden].
func (d *Database) GroupStores(ctx context.Context) (s GroupStores, err error) {
	essential, wanted := groupEssentials(), groupOptions()
	for table, columns := range essential {
		wanted[table] = append(columns, wanted[table]...)
	}
	c, err := d.Tables(ctx, wanted)
	if err != nil {
		return s, err
	}
	details := c.Table("namespace_details")
	s.legacy = c.Table("group_deletion_schedules").Has(wanted["group_deletion_schedules"]...)
	s.details = details.Has("namespace_id")
	s.metadata, s.modern = details.Has("state_metadata"), details.Has("state_metadata", "deletion_scheduled_at")
	s.state = c.Table("namespaces").Has("state")
	s.period = c.Table("application_settings").Has("deletion_adjourned_period")
	if !s.legacy && !s.modern {
		s.Missing = fmt.Sprintf("database %s has neither the table group_deletion_schedules nor the columns deletion_scheduled_at and state_metadata of namespace_details", d.Name)
	}
	for _, table := range slices.Sorted(maps.Keys(essential)) {
		for _, column := range essential[table] {
			if !c.Table(table).Has(column) {
				s.Missing = fmt.Sprintf("database %s has no table %s with a column %s in the application schema", d.Name, table, column)
			}
		}
	}
	return s, nil
}

// String lists what was found besides the essentials.
func (s GroupStores) String() string {
	found := []string{}
	for _, f := range []struct {
		name string
		here bool
	}{
		{"group_deletion_schedules", s.legacy},
		{"namespace_details.deletion_scheduled_at", s.modern},
		{"namespace_details.state_metadata", s.metadata},
		{"namespaces.state", s.state},
		{"application_settings.deletion_adjourned_period", s.period},
	} {
		if f.here {
			found = append(found, f.name)
		}
	}
	return strings.Join(found, ", ")
}
