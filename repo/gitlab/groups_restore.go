package gitlab

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// The restore of a group.

// Restoration is the result of restoring a group.
type Restoration struct {
	// Restored: it is restored. Held: its removal is in progress. Neither: it is no longer marked, or
	// not due.
	Restored, Held bool
	// OldPath and NewPath are its full path.
	OldPath, NewPath string
	// Tables are the numbers of changes.
	Tables []jobqueue.TableCount
}

// restoring is a group under its row's lock.
type restoring struct {
	id int64
	// path and name are the group's own, still with the suffix of the mark.
	path, name string
	// route is the full path, title the full name, from the routes. hasRoute: the group has a row of
	// its own there.
	route, title string
	hasRoute     bool
	// archived: the group was archived before it was marked.
	archived bool
	// due: the grace period has ended. started: caretaker has started the removal. working: the
	// state is 4, a removal in progress.
	due, started, working bool
}

// errTooLarge ends a restore that takes longer than the lease lasts.
var errTooLarge = errors.New("the restore takes longer than the lease allows")

// RestoreGroup restores a due group in one transaction, or changes nothing. It must end within
// p.Transaction, otherwise the error is [errTooLarge]. A group that no longer exists gives the zero
// value and no error.
func (d Groups) RestoreGroup(
	ctx context.Context, p fencing.Permit, s GroupStores, a Adjournment, id int64,
) (r Restoration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Transaction, errTooLarge)
	defer cancel()
	// The server's timeout is longer than the context's, so that the error is errTooLarge.
	p.Transaction += pg.NetTime
	err = pg.Transaction(ctx, d.db, "restore group", p, func(ctx context.Context, tx *pg.Changing) error {
		if err := lockGroup(ctx, tx, id); err != nil {
			return err
		}
		if r, err = restoreGroup(ctx, tx, s, a, id); r.Restored {
			tx.Count("restored_groups", 1)
		}
		return err
	})
	if errors.Is(err, dberr.ErrNotFound) {
		return Restoration{}, nil
	}
	return r, err
}

// lockGroupSQL still lets other transactions insert rows that refer to the group.
const lockGroupSQL = `
SELECT FROM namespaces WHERE id = $1::bigint AND type = 'Group' FOR NO KEY UPDATE`

// lockGroup locks the group's row, and so its marks, against changes. If the group does not exist,
// the error is [dberr.ErrNotFound].
func lockGroup(ctx context.Context, tx pgx.Tx, id int64) error {
	tag, err := tx.Exec(ctx, lockGroupSQL, id)
	if err == nil && tag.RowsAffected() == 0 {
		return dberr.ErrNotFound
	}
	return err
}

// restoringSQL locates a group without a route by the route of its parent.
const restoringSQL = `
SELECT n.path, n.name, coalesce(own.path, concat_ws('/', above.path, n.path)),
  coalesce(own.name, concat_ws(' / ', above.name, n.name)),
  own.source_id IS NOT NULL, coalesce({archived}, false),
  mark.ripe, mark.begun, coalesce({state} = 4, false)
FROM namespaces n {marks}
LEFT JOIN routes own ON own.source_type = 'Namespace' AND own.source_id = n.id
LEFT JOIN routes above ON above.source_type = 'Namespace' AND above.source_id = n.parent_id
WHERE n.id = $3::bigint`

// archivedSQL reads from the new store whether the group was archived before it was marked.
const archivedSQL = `(
  SELECT m.state_metadata -> 'preserved_states' ->> 'schedule_deletion' = 'archived'
  FROM namespace_details m WHERE m.namespace_id = n.id)`

// restoreGroup restores a locked group. It decides from the locked row, and changes nothing if the
// group is not due or its removal has started.
func restoreGroup(
	ctx context.Context, tx *pg.Changing, s GroupStores, a Adjournment, id int64,
) (Restoration, error) {
	archived := "false"
	if s.metadata {
		archived = archivedSQL
	}
	g := restoring{id: id}
	err := tx.QueryRow(ctx, s.fill(restoringSQL, "{archived}", archived), a.args(id)...).
		Scan(&g.path, &g.name, &g.route, &g.title, &g.hasRoute, &g.archived,
			&g.due, &g.started, &g.working)
	if err != nil {
		return Restoration{}, err
	}
	r := Restoration{Held: g.working || g.started, OldPath: g.route, NewPath: g.route}
	if !g.due || r.Held {
		r.Held = r.Held && (g.due || g.started)
		return r, nil
	}
	renamed, err := g.original(ctx, tx)
	if err != nil {
		return Restoration{}, err
	}
	r.Restored, r.NewPath = true, renamed.route
	r.Tables, err = g.apply(ctx, tx, s, renamed)
	return r, err
}

// withoutSuffix removes the suffix of a marked group, which contains the group's own id, from the
// end.
func (g *restoring) withoutSuffix(s string) string {
	for _, suffix := range markSuffixes(g.id) {
		original, marked := strings.CutSuffix(s, suffix)
		if marked && original != "" && !strings.HasSuffix(strings.TrimSpace(original), "/") {
			return original
		}
	}
	return s
}

const (
	// pathTakenSQL reports whether another route has the path, ignoring case.
	pathTakenSQL = `
SELECT EXISTS (SELECT FROM routes
  WHERE lower(path) = lower($1) AND NOT (source_type = 'Namespace' AND source_id = $2::bigint))`

	// nameTakenSQL reports whether a sibling of the same type has the name.
	nameTakenSQL = `
SELECT EXISTS (SELECT FROM namespaces n JOIN namespaces own ON own.id = $2::bigint
  WHERE n.name = $1 AND n.type = own.type
    AND n.parent_id IS NOT DISTINCT FROM own.parent_id AND n.id <> own.id)`
)

// original returns the restored names of the group. A path or name that was used meanwhile gets a
// random ending.
func (g *restoring) original(ctx context.Context, tx pgx.Tx) (restoring, error) {
	to := *g
	to.path, to.name = g.withoutSuffix(g.path), g.withoutSuffix(g.name)
	to.route, to.title = g.follow(g.route, g.path, to.path), g.follow(g.title, g.name, to.name)
	if to.route != g.route {
		ending, err := g.ending(ctx, tx, pathTakenSQL, to.route)
		if err != nil {
			return to, err
		}
		to.path, to.route = to.path+ending, to.route+ending
	}
	if to.name != g.name {
		ending, err := g.ending(ctx, tx, nameTakenSQL, to.name)
		if err != nil {
			return to, err
		}
		to.name, to.title = to.name+ending, g.follow(g.title, g.name, to.name+ending)
	}
	return to, nil
}

// follow returns a full path or name after its last part has changed. If it did not end in that
// part, it loses the suffix at most.
func (g *restoring) follow(full, from, to string) string {
	if above, follows := strings.CutSuffix(full, from); follows {
		return above + to
	}
	return g.withoutSuffix(full)
}

// ending is the suffix that makes a path or name free: nothing, or a dash and five random
// characters. It repeats the query until the result is free.
func (g *restoring) ending(
	ctx context.Context, tx pgx.Tx, takenSQL, wanted string,
) (ending string, err error) {
	for {
		var taken bool
		err := tx.QueryRow(ctx, takenSQL, wanted+ending, g.id).Scan(&taken)
		if err != nil || !taken {
			return ending, err
		}
		ending = "-" + strings.ToLower(rand.Text())[:5]
	}
}

const (
	// renameRouteSQL renames the group's own route.
	renameRouteSQL = `
UPDATE routes SET path = $2, name = $3{routes.touched}
WHERE source_type = 'Namespace' AND source_id = $1::bigint`

	// renameGroupSQL renames the group and, where the column exists, resets its state.
	renameGroupSQL = `
UPDATE namespaces SET path = $2, name = $3{namespaces.touched}{state} WHERE id = $1::bigint`

	// unscheduleSQL deletes the mark of the legacy store.
	unscheduleSQL = `DELETE FROM group_deletion_schedules WHERE group_id = $1::bigint`

	// unmarkDetailsSQL removes the mark from the new store. Other keys of the JSON stay, and so
	// does a value that is not an object.
	unmarkDetailsSQL = `
UPDATE namespace_details SET {mark}state_metadata = CASE
  WHEN jsonb_typeof(state_metadata) IS DISTINCT FROM 'object' THEN state_metadata
  WHEN jsonb_typeof(state_metadata -> 'preserved_states') IS DISTINCT FROM 'object'
    THEN state_metadata - {keys}
  WHEN (state_metadata -> 'preserved_states') - 'schedule_deletion' = '{}'
    THEN state_metadata - 'preserved_states' - {keys}
  ELSE (state_metadata #- '{preserved_states,schedule_deletion}') - {keys} END
WHERE namespace_id = $1::bigint`

	// markKeys are the keys of the new store's mark in its JSON, besides the preserved state.
	markKeys = `ARRAY[` + scheduledByKey + `, 'deletion_error']`
)

// apply renames the group and everything below it, and deletes its mark from the stores. The
// group's row comes last, because other transactions wait for it. It returns the numbers of changed
// rows by table.
func (g *restoring) apply(
	ctx context.Context, tx *pg.Changing, s GroupStores, to restoring,
) ([]jobqueue.TableCount, error) {
	// 1. The routes below the group, then its own.
	routes, err := g.renameBelow(ctx, tx, s, to)
	if err != nil {
		return nil, err
	}
	if g.hasRoute {
		err := changeRow(ctx, tx, "routes", s.fill(renameRouteSQL), g.id, to.route, to.title)
		if err != nil {
			return nil, err
		}
		routes++
	}
	counts := []jobqueue.TableCount{{Table: "namespaces", Updated: 1}, {Table: "routes", Updated: routes}}
	// 2. The mark in the legacy store, then in the new one.
	if s.legacy {
		rows, err := tx.Change(ctx, pg.RowChange{
			Table: "group_deletion_schedules", Action: pg.ReceiptDeleted, SQL: unscheduleSQL,
			Key: "group_id", Args: []any{g.id},
		})
		if err != nil {
			return nil, err
		}
		counts = append(counts, jobqueue.TableCount{Table: "group_deletion_schedules", Deleted: rows})
	}
	if s.metadata {
		mark := ""
		if s.modern {
			mark = "deletion_scheduled_at = NULL, "
		}
		unmark := stmt.Fill(unmarkDetailsSQL, "{mark}", mark, "{keys}", markKeys)
		rows, err := tx.Change(ctx, groupChange("namespace_details", unmark, g.id))
		if err != nil {
			return nil, err
		}
		counts = append(counts, jobqueue.TableCount{Table: "namespace_details", Updated: rows})
	}
	// 3. The group's row.
	rename := s.fill(stmt.Fill(renameGroupSQL, "{state}", g.stateBefore(s)))
	return counts, changeRow(ctx, tx, "namespaces", rename, g.id, to.path, to.name)
}

// changeRow changes an existing row of a table. If the row does not change, the error is a
// [*rowset.KeptError].
func changeRow(ctx context.Context, tx *pg.Changing, table, sql string, args ...any) error {
	rows, err := tx.Change(ctx, groupChange(table, sql, args...))
	if err == nil && rows == 0 {
		err = rowset.KeptIn(ctx, tx, table, rowset.ToChange)
	}
	return err
}

// stateBefore sets the state that the group had before it was marked. It returns an assignment for
// renameGroupSQL, "" without the column state. State 2 is a scheduled deletion, 1 is archived.
func (g *restoring) stateBefore(s GroupStores) string {
	switch {
	case !s.state:
		return ""
	case g.archived:
		return ", state = CASE WHEN state = 2 THEN 1 ELSE state END"
	}
	return ", state = CASE WHEN state = 2 THEN 0 ELSE state END"
}

// renameBelowSQL compares bytes: only the leading part counts, and "/" is followed by "0". It skips
// rows that have moved elsewhere since the page was read.
const renameBelowSQL = `
WITH page AS MATERIALIZED (
  SELECT r.id, r.path FROM routes r
  WHERE r.path ~>=~ ($1::text || '/') AND r.path ~<~ ($1::text || '0') AND r.path ~>~ $2::text
  ORDER BY r.path USING ~<~ LIMIT $3
),
changed AS (
  UPDATE routes r
  SET path = $4::text || substr(r.path, length($1::text) + 1),
      name = CASE WHEN starts_with(r.name, $5::text)
        THEN $6::text || substr(r.name, length($5::text) + 1) ELSE r.name END{routes.touched}
  FROM page WHERE r.id = page.id AND starts_with(r.path, $1::text || '/')
  RETURNING r.id AS key
)
SELECT coalesce((SELECT path FROM page ORDER BY path USING ~>~ LIMIT 1), ''),
  (SELECT count(*) FROM changed), clock_timestamp() - statement_timestamp(), {summary}`

const (
	// minRename and maxRename bound the routes that one statement renames. The number grows while a
	// statement takes less than quickRename.
	minRename, maxRename = 1000, 20_000
	quickRename          = 125 * time.Millisecond
)

// renameBelow renames the routes of all groups and projects below, page by page, until a search
// from the start finds none. One page may change nothing, because its rows have moved meanwhile.
// Two in a row mean that a trigger or rule keeps the rows from being changed.
func (g *restoring) renameBelow(
	ctx context.Context, tx *pg.Changing, s GroupStores, to restoring,
) (renamed int64, err error) {
	if to.route == g.route && to.title == g.title {
		return 0, nil
	}
	sql := pg.Summary(tx.Database, s.fill(renameBelowSQL, "{summary}", pg.SummarySQL), "id", "true")
	// after is the path at which a page starts. idle: the previous page changed nothing.
	after, limit, idle := "", minRename, false
	for {
		var last string
		var n int64
		var took time.Duration
		var summary []*string
		err := tx.QueryRow(ctx, sql, g.route, after, limit, to.route, g.title, to.title).
			Scan(&last, &n, &took, &summary)
		tx.Record("routes", pg.ReceiptUpdated, summary)
		renamed += n
		switch {
		case err != nil, last == "" && (after == "" || to.route == g.route):
			return renamed, err
		case last != "" && n == 0 && idle:
			return renamed, rowset.KeptIn(ctx, tx, "routes", rowset.ToChange)
		case took < quickRename:
			limit = min(2*limit, maxRename)
		}
		if last != "" {
			idle = n == 0
		}
		after = last
	}
}
