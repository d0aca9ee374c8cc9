package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Kinds of what a run works on. Users and groups can be protected, a placeholder as a user.
const (
	KindUser        = "user"
	KindGroup       = "group"
	KindPlaceholder = "placeholder"
)

// Candidate is something that a run would work on: its kind, id and name, what would be done, and why.
type Candidate struct {
	Kind string `json:"kind"`
	ID   int64  `json:"id"`
	// Name is a username or a full path, "" where there is none.
	Name   string `json:"name"`
	Action string `json:"action"`
	// Reason is a typed reason, perhaps with words, "" where the action says all.
	Reason string `json:"reason"`
}

// namesSQL: LIMIT keeps the look-ups by index, whatever the tables look like.
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

// Names reads usernames or, of groups, full paths, as far as there are such columns.
func (d *Database) Names(
	ctx context.Context, kind string, ids []int64, l Limits,
) (map[int64]string, error) {
	sql, needs := userNamesSQL, referencesOf("users", "id username")
	if kind == KindGroup {
		sql, needs = groupNamesSQL, referencesOf("routes", "source_id source_type path")
	}
	p, err := d.presence(ctx, needs)
	if err != nil || len(ids) == 0 || !p.has(needs...) {
		return nil, err
	}
	type pair struct {
		ID   int64
		Name string
	}
	q := newQuery("read the names of candidates", sql, ids)
	pairs, err := readRows(ctx, d, l, q, pgx.RowToStructByPos[pair])
	names := map[int64]string{}
	for _, p := range pairs {
		names[p.ID] = p.Name
	}
	return names, err
}
