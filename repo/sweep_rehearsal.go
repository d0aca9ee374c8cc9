package repo

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Place is where a row stands: what tells rows apart in a dry run, which changes none.
type Place struct {
	table, block uint32
	item         uint16
}

// placesSQL reads rows where they stand, in that order.
const placesSQL = `
SELECT t.tableoid, t.ctid, ARRAY[{keys}]::text[] FROM {table} t
WHERE {match} AND (t.tableoid, t.ctid) > ({oid}::oid, {tid}::tid)
ORDER BY t.tableoid, t.ctid
LIMIT {limit}`

// Places reads where the rows behind a place stand, at most limit of them, and the values of some columns, as text: the
// values of a row have its place in each list. It reads and locks nothing else.
func (r Rows) Places(ctx context.Context, columns []Column, after Place, limit int64, l Limits) (places []Place, values [][]string, err error) {
	var p parameters
	match, _ := r.sql(&p)
	keys := make([]string, len(columns))
	for i, c := range columns {
		keys[i] = fmt.Sprintf("t.%s::text", quote(c.Name))
	}
	last := pgtype.TID{BlockNumber: after.block, OffsetNumber: after.item, Valid: true}
	sql := fill(placesSQL, "{keys}", strings.Join(keys, ", "), "{table}", r.from(), "{match}", match,
		"{oid}", p.add(after.table), "{tid}", p.add(last), "{limit}", p.add(limit))
	values = make([][]string, len(columns))
	l.ReadOnly = true
	places, err = readRows(ctx, r.Database, l, newQuery("look at rows of "+r.String(), sql, p...), func(row pgx.CollectableRow) (Place, error) {
		var table uint32
		var at pgtype.TID
		var found []string
		if err := row.Scan(&table, &at, &found); err != nil {
			return Place{}, err
		}
		for i := range found {
			values[i] = append(values[i], found[i])
		}
		return Place{table, at.BlockNumber, at.OffsetNumber}, nil
	})
	return places, values, err
}
