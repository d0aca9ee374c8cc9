package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The statements of a restore that change rows.

const (
	renameRouteSQL = `
UPDATE routes SET path = $2, name = $3{routes.touched}
WHERE source_type = 'Namespace' AND source_id = $1::bigint`

	renameGroupSQL = `
UPDATE namespaces SET path = $2, name = $3{namespaces.touched}{state} WHERE id = $1::bigint`

	unscheduleSQL = `DELETE FROM group_deletion_schedules WHERE group_id = $1::bigint`

	unmarkDetailsSQL = `
UPDATE namespace_details SET {mark}state_metadata = CASE
  WHEN jsonb_typeof(state_metadata) IS DISTINCT FROM 'object' THEN state_metadata
  WHEN jsonb_typeof(state_metadata -> 'preserved_states') IS DISTINCT FROM 'object' THEN state_metadata - {keys}
  WHEN (state_metadata -> 'preserved_states') - 'schedule_deletion' = '{}' THEN state_metadata - 'preserved_states' - {keys}
  ELSE (state_metadata #- '{preserved_states,schedule_deletion}') - {keys} END
WHERE namespace_id = $1::bigint`

	// markKeys are what the mark of the new store leaves in its JSON, besides the preserved state.
	markKeys = `ARRAY[` + scheduledByKey + `, 'deletion_error']`
)

// apply renames the group and what is below it, and takes its mark out of the stores. The group's row comes last: it is
// what others wait for.
func (g *restoring) apply(ctx context.Context, tx pgx.Tx, s GroupStores, to restoring) ([]TableCount, error) {
	routes, err := g.renameBelow(ctx, tx, s, to)
	if err != nil {
		return nil, err
	}
	if g.hasRoute {
		if err := changeRow(ctx, tx, "routes", s.fill(renameRouteSQL), g.id, to.route, to.title); err != nil {
			return nil, err
		}
		routes++
	}
	counts := []TableCount{{Table: "namespaces", Updated: 1}, {Table: "routes", Updated: routes}}
	if s.legacy {
		tag, err := tx.Exec(ctx, unscheduleSQL, g.id)
		if err != nil {
			return nil, err
		}
		counts = append(counts, TableCount{Table: "group_deletion_schedules", Deleted: tag.RowsAffected()})
	}
	if s.metadata {
		mark := ""
		if s.modern {
			mark = "deletion_scheduled_at = NULL, "
		}
		tag, err := tx.Exec(ctx, fill(unmarkDetailsSQL, "{mark}", mark, "{keys}", markKeys), g.id)
		if err != nil {
			return nil, err
		}
		counts = append(counts, TableCount{Table: "namespace_details", Updated: tag.RowsAffected()})
	}
	return counts, changeRow(ctx, tx, "namespaces", s.fill(fill(renameGroupSQL, "{state}", g.stateBefore(s))), g.id, to.path, to.name)
}

// changeRow changes a row of a table that is there. If it is left as it was the error is a [*KeptError].
func changeRow(ctx context.Context, tx pgx.Tx, table, sql string, args ...any) error {
	tag, err := tx.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		err = keptIn(ctx, tx, table, toChange)
	}
	return err
}

// stateBefore sets the state that the group had before it was marked.
func (g *restoring) stateBefore(s GroupStores) string {
	switch {
	case !s.state:
		return ""
	case g.archived:
		return ", state = CASE WHEN state = 2 THEN 1 ELSE state END"
	}
	return ", state = CASE WHEN state = 2 THEN 0 ELSE state END"
}

// renameBelowSQL compares bytes: only the leading part is looked at, and "/" is followed by "0". Rows that have gone
// elsewhere since the page was read are left alone.
const renameBelowSQL = `
WITH page AS MATERIALIZED (
  SELECT r.id, r.path FROM routes r
  WHERE r.path ~>=~ ($1::text || '/') AND r.path ~<~ ($1::text || '0') AND r.path ~>~ $2::text
  ORDER BY r.path USING ~<~ LIMIT $3
),
changed AS (
  UPDATE routes r
  SET path = $4::text || substr(r.path, length($1::text) + 1),
      name = CASE WHEN starts_with(r.name, $5::text) THEN $6::text || substr(r.name, length($5::text) + 1) ELSE r.name END{routes.touched}
  FROM page WHERE r.id = page.id AND starts_with(r.path, $1::text || '/')
  RETURNING 1
)
SELECT coalesce((SELECT path FROM page ORDER BY path USING ~>~ LIMIT 1), ''), (SELECT count(*) FROM changed),
  clock_timestamp() - statement_timestamp()`

const (
	// minRename and maxRename bound the routes that one statement renames; it grows while it takes less than quickRename.
	minRename, maxRename = 1000, 20_000
	quickRename          = 125 * time.Millisecond
)

// renameBelow renames the routes of all groups and projects below, page by page, until a look from the start finds none.
// A page that has gone elsewhere meanwhile may change nothing, two in a row are rows that do not let themselves be
// changed.
func (g *restoring) renameBelow(ctx context.Context, tx pgx.Tx, s GroupStores, to restoring) (renamed int64, err error) {
	if to.route == g.route && to.title == g.title {
		return 0, nil
	}
	sql := s.fill(renameBelowSQL)
	after, limit, idle := "", minRename, false
	for {
		var last string
		var n int64
		var took time.Duration
		err := tx.QueryRow(ctx, sql, g.route, after, limit, to.route, g.title, to.title).Scan(&last, &n, &took)
		renamed += n
		switch {
		case err != nil, last == "" && (after == "" || to.route == g.route):
			return renamed, err
		case last != "" && n == 0 && idle:
			return renamed, keptIn(ctx, tx, "routes", toChange)
		case took < quickRename:
			limit = min(2*limit, maxRename)
		}
		if last != "" {
			idle = n == 0
		}
		after = last
	}
}
