package gitlab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Groups marked for deletion. The mark is in one of two stores, or in both. The existing stores
// differ between versions of the application.

// Adjournment decides when a mark is due: At is the time T of the run, or now, Days the N of the
// setting.
type Adjournment struct {
	At   time.Time
	Days int64
}

// maxAdjournment keeps the arithmetic on dates within PostgreSQL's range.
const maxAdjournment = 1_000_000

func (a Adjournment) args(more ...any) []any {
	return append([]any{a.At, min(a.Days, maxAdjournment)}, more...)
}

// Parameters $1 and $2 of the statements about marks are those of an Adjournment.
const (
	todaySQL  = `($1::timestamptz AT TIME ZONE 'UTC')::date`
	cutoffSQL = `(` + todaySQL + ` - $2::integer)`
)

// schedulesSQL is the legacy store. noSchedulesSQL replaces it if it is missing.
const (
	schedulesSQL = `(SELECT group_id, user_id, marked_for_deletion_on AS marked_on
  FROM group_deletion_schedules)`
	noSchedulesSQL = `(SELECT NULL::bigint AS group_id, NULL::bigint AS user_id,
  NULL::date AS marked_on WHERE false)`
)

// detailsSQL is the new store, noDetailsSQL replaces it. A user is a whole JSON number or a string
// of digits. Other values name no user.
const (
	detailsSQL = `(SELECT x.group_id, x.marked_at, x.named,
    (x.marked_at AT TIME ZONE 'UTC')::date AS marked_on,
    CASE WHEN x.number = trunc(x.number) AND x.number BETWEEN 1 AND 9223372036854775807
      THEN x.number::bigint END AS user_id
  FROM (
    SELECT namespace_id AS group_id, deletion_scheduled_at AS marked_at,
      state_metadata ->> {key} AS named,
      CASE jsonb_typeof(state_metadata -> {key})
        WHEN 'number' THEN (state_metadata ->> {key})::numeric
        WHEN 'string' THEN substring(state_metadata ->> {key} FROM '^[0-9]{1,30}$')::numeric
      END AS number
    FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL) x)`
	noDetailsSQL = `(SELECT NULL::bigint AS group_id, NULL::timestamptz AS marked_at,
    NULL::date AS marked_on, NULL::text AS named, NULL::bigint AS user_id WHERE false)`
	scheduledByKey = `'deletion_scheduled_by_user_id'`
)

// GroupStores are the stores of marks in main at the time of reading.
type GroupStores struct {
	// Missing is the missing table or column that groups require, empty if none is missing.
	Missing string
	// MissingOptional names the other missing ones.
	MissingOptional string
	// legacy: group_deletion_schedules with all columns of a mark. schedules: at least with the ids of
	// groups. details: namespace_details. modern: with both columns of the mark. metadata: with
	// state_metadata.
	legacy, schedules, details, modern, metadata bool
	// state: namespaces.state. period: application_settings.deletion_adjourned_period.
	state, period bool
	fillings      []string
}

// fill puts the stores into a statement.
func (s GroupStores) fill(sql string, pairs ...string) string {
	legacy, modern, state := noSchedulesSQL, noDetailsSQL, "NULL::smallint"
	if s.legacy {
		legacy = schedulesSQL
	}
	if s.modern {
		modern = stmt.Fill(detailsSQL, "{key}", scheduledByKey)
	}
	if s.state {
		state = "n.state"
	}
	sql = stmt.Fill(sql, "{marks}", marksSQL, "{known}", knownMarkSQL, "{direct}", directMembershipSQL)
	stores := []string{
		"{legacy}", legacy, "{modern}", modern, "{state}", state,
		"{today}", todaySQL, "{cutoff}", cutoffSQL,
	}
	return stmt.Fill(sql, slices.Concat(stores, s.fillings, pairs)...)
}

// groupEssentials are the parts of the application schema that groups require.
func groupEssentials() []catalog.Reference {
	return catalog.ReferencesOf(
		"users", "id user_type state admin",
		"namespaces", "id type parent_id name path",
		"routes", "id source_type source_id path name",
		"members", "id source_type source_id user_id access_level",
		"group_group_links", "shared_group_id shared_with_group_id group_access",
		"projects", "id namespace_id",
	)
}

// optionalGroupColumns are the columns that the stores and settings require.
func optionalGroupColumns(s *GroupStores) map[*bool][]catalog.Reference {
	return map[*bool][]catalog.Reference{
		&s.legacy:    catalog.ReferencesOf("group_deletion_schedules", "group_id user_id marked_for_deletion_on"),
		&s.schedules: catalog.ReferencesOf("group_deletion_schedules", "group_id"),
		&s.details:   catalog.ReferencesOf("namespace_details", "namespace_id"),
		&s.metadata:  catalog.ReferencesOf("namespace_details", "namespace_id state_metadata"),
		&s.modern: catalog.ReferencesOf(
			"namespace_details", "namespace_id state_metadata deletion_scheduled_at"),
		&s.state:  catalog.ReferencesOf("namespaces", "state"),
		&s.period: catalog.ReferencesOf("application_settings", "deletion_adjourned_period"),
	}
}

// groupReferences are all columns that are read.
func groupReferences() []catalog.Reference {
	all := groupEssentials()
	for _, columns := range optionalGroupColumns(new(GroupStores)) {
		all = append(all, columns...)
	}
	return all
}

// GroupUses are the uses of main for finding, restoring and removing groups, without those that
// depend on a group.
func GroupUses() []catalog.Use {
	return []catalog.Use{
		{Table: "users", Rights: catalog.ToRead},
		{Table: "namespaces", Rights: catalog.ToRemove, Columns: "parent_id type"},
		{Table: "routes", Rights: catalog.ToRemove},
		{Table: "namespace_details", Rights: catalog.ToRemove, Columns: "namespace_id"},
		{Table: "group_deletion_schedules", Rights: catalog.MaySelect | catalog.MayDelete, Columns: "group_id"},
		{
			Table: "members", Rights: catalog.MaySelect | catalog.MayDelete,
			Columns: "user_id source_id member_namespace_id",
		},
		{Table: "group_group_links", Rights: catalog.ToRead, Columns: "shared_group_id"},
		{Table: "projects", Rights: catalog.ToRead, Columns: "namespace_id"},
		{Table: "application_settings", Rights: catalog.ToRead},
	}
}

// GroupStores finds the stores of marks, and other optional tables. If our role cannot read a
// table, the error is [dberr.ErrForbidden].
func (d Groups) GroupStores(ctx context.Context) (s GroupStores, err error) {
	essential, optional := groupEssentials(), optionalGroupColumns(&s)
	options := append(membershipOptions(), catalog.NewestSettings(),
		catalog.ValueOption("group_group_links", "l", "expires_at", "NULL::date"),
		catalog.TouchOption("routes", catalog.UtcNow), catalog.TouchOption("namespaces", catalog.UtcNow))
	p, err := catalog.Present(ctx, d.db, groupReferences(), options...)
	if err != nil {
		return s, err
	}
	for feature, columns := range optional {
		*feature = p.Has(columns...)
	}
	s.fillings, s.MissingOptional, s.Missing = p.Fillings, p.MissingOptional, p.Missing(ctx, essential...)
	if s.Missing == "" {
		// Otherwise no user would be active, and groups due for removal would be restored.
		s.Missing, err = p.Unsuitable(ctx, catalog.Reference{Table: "users", Column: "state"}, "active")
	}
	if s.Missing == "" && !s.legacy && !s.modern {
		s.Missing = fmt.Sprintf("database %s has neither the table group_deletion_schedules nor the "+
			"columns deletion_scheduled_at and state_metadata of namespace_details", d.db.Name)
	}
	return s, err
}

// marksSQL joins the known marks of the group n. Of two stores the later date counts. The user is
// the new store's if it exists, else the legacy store's. A started removal has the user of its
// start. LIMIT keeps the joins look-ups: only few of all namespaces are marked.
const marksSQL = `
LEFT JOIN LATERAL (
  SELECT x.group_id, x.user_id, x.marked_on FROM {legacy} x
  WHERE x.group_id = n.id LIMIT 1) l ON true
LEFT JOIN LATERAL (
  SELECT x.group_id, x.user_id, x.marked_at, x.marked_on FROM {modern} x
  WHERE x.group_id = n.id LIMIT 1) d ON true
LEFT JOIN LATERAL (
  SELECT x.group_id, x.user_id FROM maintenance.group_removals x
  WHERE x.group_id = n.id LIMIT 1) r ON true
CROSS JOIN LATERAL (SELECT
  l.group_id IS NOT NULL OR d.group_id IS NOT NULL AS marked,
  coalesce(greatest(l.marked_on, d.marked_on) <= {cutoff}, false) AS ripe,
  r.group_id IS NOT NULL AS begun,
  coalesce((SELECT u.id FROM users u WHERE u.id = d.user_id),
    (SELECT u.id FROM users u WHERE u.id = l.user_id),
    (SELECT u.id FROM users u WHERE u.id = r.user_id)) AS user_id) mark`

// markSuffixes are the endings that the application adds to the path and name of a marked group.
func markSuffixes(id int64) []string {
	return []string{fmt.Sprintf("-deletion_scheduled-%d", id), fmt.Sprintf("-deleted-%d", id)}
}

const adjournedPeriodSQL = `
SELECT deletion_adjourned_period::bigint FROM application_settings {settings.newest} LIMIT 1`

// defaultAdjournment is the default of N.
const defaultAdjournment = 30

// AdjournedPeriod reads the setting N in days, nil for NULL.
func (d Groups) AdjournedPeriod(ctx context.Context, s GroupStores) (*int64, error) {
	days := new(int64(defaultAdjournment))
	if !s.period {
		return days, nil
	}
	err := pg.QueryRow(ctx, d.db, "read deletion_adjourned_period", []any{&days}, s.fill(adjournedPeriodSQL))
	if errors.Is(err, dberr.ErrNotFound) {
		return days, nil
	}
	return days, err
}
