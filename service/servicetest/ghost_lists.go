package servicetest

import (
	"context"

	"github.com/caretaker-go/caretaker/devdb/oracle"
)

// GhostRow is a row in which one column is user 10.
type GhostRow struct {
	oracle.Mention
	Database string
	// Rest is the row without the column, as JSON.
	Rest string
}

// InsertRows inserts a row for each column that mentions users into the database that has its table, without regard to
// foreign keys.
func (g *Ghosts) InsertRows() (rows []GhostRow) {
	g.T.Helper()
	for n, mention := range oracle.Mentions() {
		r := GhostRow{Mention: mention}
		for name := range g.SQL {
			if g.Value(name, `SELECT to_regclass('public.`+mention.Table+`') IS NOT NULL`) == "true" {
				r.Database = name
			}
		}
		ctx, conn := context.Background(), g.SQL[r.Database]
		sql, err := mention.InsertSQL(ctx, conn)
		if err == nil {
			err = conn.QueryRow(ctx, sql, 10, 1001+n).Scan(&r.Rest)
		}
		if err != nil {
			g.T.Fatalf("%s: %v", mention.Line, err)
		}
		rows = append(rows, r)
	}
	return rows
}
