package repo_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// sweptTables are a parent of 1000 rows, and children of 80,000: half of them are of one owner, and refer to one of
// those parents, the others to none.
const sweptTables = `
CREATE TABLE whole (a bigint, b bigint, PRIMARY KEY (a, b));
INSERT INTO whole SELECT i, i % 7 FROM generate_series(1, 1000) i;
CREATE TABLE piece (id bigserial PRIMARY KEY, owner bigint, kind text, parent_id bigint, a bigint, b bigint, FOREIGN KEY (a, b) REFERENCES whole) WITH (autovacuum_enabled = off);
CREATE INDEX ON piece (parent_id);
CREATE INDEX ON piece (a, b);
INSERT INTO piece (owner, kind, parent_id) SELECT 1000 + i, i % 3, 1000 + i FROM generate_series(1, 40000) i;
{before}
INSERT INTO piece (owner, kind, parent_id, a, b) SELECT 1, i % 3, i % 1000 + 1, i % 1000 + 1, (i % 1000 + 1) % 7 FROM generate_series(1, 40000) i;
{after}`

// sweptData is a database with these tables: statistics that were never made, are of the time before the owner had rows,
// or of now; or of now, and integers in the place of bigints.
func sweptData(t *testing.T, statistics string) string {
	t.Helper()
	analyze := map[string]string{statistics: "ANALYZE piece;"}
	sql := strings.NewReplacer("{before}", analyze["old"], "{after}", analyze["new"]+analyze["narrow"]).Replace(sweptTables)
	if statistics == "narrow" {
		sql = strings.NewReplacer("bigserial", "serial", "bigint", "integer").Replace(sql)
	}
	return databases.Clone(t, loaded("repo_swept_"+statistics, "", sql))
}

// numbers from first to last, as text.
func numbers(first, last int) (texts []string) {
	for i := first; i <= last; i++ {
		texts = append(texts, strconv.Itoa(i))
	}
	return texts
}

// sweptRows are the kinds of rows that sweeps and bounded removal work on.
func sweptRows(t *testing.T, c *repo.Catalog) map[string]repo.Rows {
	t.Helper()
	id := repo.Column{Name: "id", Type: "bigint"}
	keys := repo.Match{Columns: []repo.Column{id}, Values: [][]string{numbers(70_001, 71_000)}}
	owner, _ := c.Rows("piece", "owner", "1")
	conditional := owner
	conditional.Condition = "t.kind <> '1'"
	parents, _ := c.Rows("piece", "parent_id", numbers(1, 1000)...)
	wholes := c.References(repo.Table{Schema: "public", Name: "whole"})
	if len(wholes) != 1 {
		t.Fatalf("%d foreign keys", len(wholes))
	}
	var bs []string
	for i := range 1000 {
		bs = append(bs, strconv.Itoa((i+1)%7))
	}
	composite := c.Children(wholes[0], [][]string{numbers(1, 1000), bs})
	return map[string]repo.Rows{
		"of an owner": owner, "of an owner with a condition": conditional, "of parents": parents, "of parents with two columns": composite,
		"portion of an owner": owner.Where(keys), "portion of parents": parents.Where(keys), "portion of parents with two columns": composite.Where(keys),
	}
}

// sweptStatements are all statements about some rows.
func sweptStatements(r repo.Rows, b repo.Batch) map[string]func(context.Context) error {
	ghost, behind := int64(5), int64(50_000)
	sweep := func(c repo.Change, change func(*repo.Batch)) func(context.Context) error {
		b := b
		change(&b)
		return func(ctx context.Context) error { return second(r.Sweep(ctx, c, b)) }
	}
	calls := map[string]func(context.Context) error{
		"any": func(ctx context.Context) error { return second(r.Database.Any(ctx, []repo.Rows{r}, generous)) },
		"take": func(ctx context.Context) error {
			_, err := r.Take(ctx, []repo.Column{{Name: "id", Type: "bigint"}}, [][]string{numbers(40_001, 41_000)}, b)
			return err
		},
	}
	if len(r.Match) == 1 {
		calls["refer"] = func(ctx context.Context) error { return second(r.Refer(ctx, generous)) }
	}
	calls["report"] = sweep(repo.Change{Delete: true, Report: "kind"}, func(*repo.Batch) {})
	for name, c := range map[string]repo.Change{"delete": {Delete: true}, "move": {Set: []string{"owner"}, Value: &ghost}} {
		calls[name] = sweep(c, func(*repo.Batch) {})
		calls[name+" what is unlocked"] = sweep(c, func(b *repo.Batch) { b.SkipLocked = true })
		calls[name+" on"] = sweep(c, func(b *repo.Batch) { b.Behind = &behind })
		calls[name+" directly"] = sweep(c, func(b *repo.Batch) { b.Direct = true })
		calls[name+" directly on"] = sweep(c, func(b *repo.Batch) { b.Direct, b.Behind = true, &behind })
	}
	return calls
}

func TestSweep_PlansKeepToIndexes(t *testing.T) {
	for _, index := range []string{"owner", "owner, id"} {
		for _, statistics := range []string{"none", "old", "new", "narrow"} {
			t.Run(fmt.Sprintf("%s statistics, index of %s", statistics, index), func(t *testing.T) {
				t.Parallel()
				url := sweptData(t, statistics)
				conn := connect(t, url)
				servicetest.Must(conn.Exec(context.Background(), "CREATE INDEX ON piece ("+index+")"))(t)
				d, heard := listening(t, url)
				c := servicetest.Must(d.Catalog(context.Background(), map[string][]string{"piece": {"id", "owner", "parent_id"}}))(t)
				b := newBig(t, d)
				for kind, rows := range sweptRows(t, c) {
					for name, call := range sweptStatements(rows, repo.Batch{Permit: by(b.fence), Rows: 1000}) {
						t.Run(name+" "+kind, func(t *testing.T) { wantSweptPlans(t, conn, heard, call) })
					}
				}
			})
		}
	}
}

// wantSweptPlans has a call send its statements, and looks at how each is carried out.
func wantSweptPlans(t *testing.T, conn *pgx.Conn, heard *listener, call func(context.Context) error) {
	t.Helper()
	heard.statements = nil
	if err := call(context.Background()); err != nil && !errors.Is(err, repo.ErrLeaseLost) {
		t.Fatal(err)
	}
	settings := len(heard.statements) - 1
	for settings >= 0 && !strings.Contains(heard.statements[settings].sql, "enable_seqscan") {
		settings--
	}
	batch := heard.statements[max(settings, 0):]
	for i := 1; i < len(batch); i++ {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			nodes, text := plan(t, conn, batch[:i+1], mode)
			wantIndexes(t, nodes, text)
		}
	}
}
