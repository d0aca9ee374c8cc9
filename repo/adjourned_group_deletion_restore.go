package repo

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The restore of a group.

// Restoration is what became of a group that was to be restored.
type Restoration struct {
	// Restored: it is. Held: it is not, its removal is in progress. Neither: it is not marked, or
	// not due, any more.
	Restored, Held bool
	// OldPath and NewPath are its full path.
	OldPath, NewPath string
	// Tables changed.
	Tables []TableCount
}

// restoring is a group under its row's lock.
type restoring struct {
	id         int64
	path, name string
	// route is the full path, title the full name, by the routes; hasRoute: it has a row of its own
	// there.
	route, title string
	hasRoute     bool
	// archived before it was marked.
	archived            bool
	due, begun, working bool
}

// errTooLarge ends a restore that takes longer than the lease lasts.
var errTooLarge = errors.New("the restore did not end in the time that the lease leaves it")

// RestoreGroup restores a due group in one transaction, or leaves everything as it is.
func (d *Database) RestoreGroup(
	ctx context.Context, p Permit, s GroupStores, a Adjournment, id int64,
) (r Restoration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Transaction, errTooLarge)
	defer cancel()
	p.Transaction += netTime
	err = d.transaction(ctx, "restore group", p, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockGroup(ctx, tx, id); err != nil {
			return err
		}
		r, err = restoreGroup(ctx, tx, s, a, id)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return Restoration{}, nil
	}
	return r, err
}

const lockGroupSQL = `SELECT FROM namespaces WHERE id = $1::bigint AND type = 'Group' FOR NO KEY UPDATE`

// lockGroup keeps the group's row, and so its marks, from being changed by others. No such group is
// [ErrNotFound].
func lockGroup(ctx context.Context, tx pgx.Tx, id int64) error {
	tag, err := tx.Exec(ctx, lockGroupSQL, id)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNotFound
	}
	return err
}

// restoringSQL: a group without a route is taken to be where its parent's route leads.
const restoringSQL = `
SELECT n.path, n.name, coalesce(own.path, concat_ws('/', above.path, n.path)), coalesce(own.name, concat_ws(' / ', above.name, n.name)),
  own.source_id IS NOT NULL, coalesce({archived}, false), mark.ripe, mark.begun, coalesce({state} = 4, false)
FROM namespaces n {marks}
LEFT JOIN routes own ON own.source_type = 'Namespace' AND own.source_id = n.id
LEFT JOIN routes above ON above.source_type = 'Namespace' AND above.source_id = n.parent_id
WHERE n.id = $3::bigint`

const archivedSQL = `(SELECT m.state_metadata -> 'preserved_states' ->> 'schedule_deletion' = 'archived'
  FROM namespace_details m WHERE m.namespace_id = n.id)`

// restoreGroup restores a locked group.
func restoreGroup(
	ctx context.Context, tx pgx.Tx, s GroupStores, a Adjournment, id int64,
) (Restoration, error) {
	archived := "false"
	if s.metadata {
		archived = archivedSQL
	}
	g := restoring{id: id}
	err := tx.QueryRow(ctx, s.fill(restoringSQL, "{archived}", archived), a.args(id)...).Scan(&g.path, &g.name, &g.route,
		&g.title, &g.hasRoute, &g.archived, &g.due, &g.begun, &g.working)
	if err != nil {
		return Restoration{}, err
	}
	r := Restoration{Held: g.working || g.begun, OldPath: g.route, NewPath: g.route}
	if !g.due || r.Held {
		r.Held = r.Held && (g.due || g.begun)
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

// withoutSuffix takes the suffix of a marked group, which has the group's own id, off the end.
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
	pathTakenSQL = `
SELECT EXISTS (SELECT FROM routes WHERE lower(path) = lower($1) AND NOT (source_type = 'Namespace' AND source_id = $2::bigint))`

	nameTakenSQL = `
SELECT EXISTS (SELECT FROM namespaces n JOIN namespaces own ON own.id = $2::bigint
  WHERE n.name = $1 AND n.type = own.type AND n.parent_id IS NOT DISTINCT FROM own.parent_id AND n.id <> own.id)`
)

// original finds the names that the group gets back. A path or name that somebody else has taken
// meanwhile gets a random ending.
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

// follow is a full path or name after its last part has changed. One that did not end in it loses
// the suffix at most.
func (g *restoring) follow(full, from, to string) string {
	if above, follows := strings.CutSuffix(full, from); follows {
		return above + to
	}
	return g.withoutSuffix(full)
}

// ending is what makes a path or name free: nothing, or a dash and five random characters.
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
