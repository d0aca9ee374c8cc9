package repo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// rows of a table in which a column has a value.
func (b *bench) rows(table, column, value string) rowset.Rows {
	b.Helper()
	r, ok := rowset.RowsOf(b.catalog(map[string][]string{table: {column}}), table, column, value)
	assert.Require(b.T, ok, "no %s.%s", table, column)
	return r
}

// swept is one statement of a sweep.
func (b *bench) swept(r rowset.Rows, c rowset.Change, batch rowset.Batch) rowset.BatchResult {
	b.Helper()
	if batch.Limits = generous; batch.Guard == (fencing.Guard{}) {
		batch.Guard = repo.Unguarded()
	}
	return assert.Must(r.Sweep(context.Background(), c, batch))(b.T)
}

// numbered makes a table t with n rows of owner 1 between those of owner 2.
func numbered(t *testing.T, n string) *bench {
	t.Helper()
	b := newBench(t, "")
	b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint, path text); CREATE INDEX ON t (owner, id)`)
	b.exec(`INSERT INTO t (owner, path) SELECT 1 + i % 2, 'p' || i FROM generate_series(0, 2 * ` + n + ` - 1) i`)
	return b
}

func TestSweep_ChangesNoMoreRowsThanTheBatchAllowsAndGoesOnBehindThem(t *testing.T) {
	b := numbered(servicetest.Parallel(t), "10")
	ghost := int64(9)
	r := b.rows("t", "owner", "1")
	first := b.swept(r, rowset.Change{Set: []string{"owner"}, Value: &ghost}, rowset.Batch{Rows: 4})
	assert.Require(t, first.Found == 4 && first.Changed == 4 && first.Last != nil && *first.Last == 7, "%+v", first)
	b.exec(`UPDATE t SET owner = 1 WHERE id = 1`)
	second := b.swept(r, rowset.Change{Set: []string{"owner"}}, rowset.Batch{Rows: 100, After: first.Last})
	assert.That(t, second.Found == 6 && second.Changed == 6, "%+v", second)
	b.want(`SELECT string_agg(coalesce(owner, 0)::text, '' ORDER BY id) FROM t`, "12929292020202020202")
}

func TestSweep_GoesOnDirectlyBehindAFullBatch(t *testing.T) {
	b := numbered(servicetest.Parallel(t), "10")
	ghost := int64(9)
	for _, index := range []string{"(owner, id)", "(owner)", "(id, owner)"} {
		b.exec(`DROP INDEX IF EXISTS t_owner_id_idx, t_owner_idx; CREATE INDEX ON t ` + index + `; UPDATE t SET owner = 2 - id % 2`)
		r := b.rows("t", "owner", "1")
		r.Condition = "t.path <> 'p18'"
		change := rowset.Change{Set: []string{"owner"}, Value: &ghost}
		first := b.swept(r, change, rowset.Batch{Rows: 4})
		second := b.swept(r, change, rowset.Batch{Rows: 4, After: first.Last, Direct: true})
		b.exec(`UPDATE t SET owner = 1 WHERE id = 3`)
		third := b.swept(r, change, rowset.Batch{Rows: 4, After: second.Last, Direct: true})
		assert.That(t, second.Found == 4 && second.Changed == 4 && third.Found == third.Changed &&
			(second.Last == nil) == (index != "(owner, id)"), "%s: %+v, %+v", index, second, third)
		want := "92929292929292929212"
		if index == "(owner, id)" {
			want = "92129292929292929212"
		}
		b.want(`SELECT string_agg(owner::text, '' ORDER BY id) FROM t`, want)
	}
}

func TestSweep_DeletesAndReportsWhatItWasAskedForAndLeavesOutLockedRowsOrWaitsForThem(t *testing.T) {
	b := numbered(servicetest.Parallel(t), "3")
	b.exec(`UPDATE t SET path = NULL WHERE id = 5`)
	some := b.rows("t", "owner", "1")
	some.Condition = "t.id > 1"
	reported := b.swept(some, rowset.Change{Delete: true, Report: "path"}, rowset.Batch{Rows: 100})
	assert.That(t, reported.Changed == 2 && slices.Equal(reported.Reported, []string{"p2"}), "%+v", reported)
	b.want(`SELECT string_agg(id::text, ',' ORDER BY id) FROM t`, "1,2,4,6")

	b.exec(`INSERT INTO t VALUES (3, 1, 'p2'), (5, 1, 'p4')`)
	b.estate.Hold(`SELECT FROM t WHERE id = 3 FOR KEY SHARE`)
	r := b.rows("t", "owner", "1")
	result := b.swept(r, rowset.Change{Delete: true}, rowset.Batch{Rows: 100, SkipLocked: true})
	assert.That(t, result.Changed == 2, "%+v", result)
	_, err := r.Sweep(context.Background(), rowset.Change{Delete: true}, rowset.Batch{Rows: 100, Permit: unguarded()})
	refused, ok := errors.AsType[*dberr.Error](err)
	assert.That(t, ok && refused.Class() == dberr.ClassLock, "got %v, want a lock", err)
	if result := b.swept(r, rowset.Change{Set: []string{"path"}}, rowset.Batch{Rows: 100, SkipLocked: true}); result.Changed != 1 {
		t.Errorf("a reference to a row keeps it from being updated: %+v", result)
	}
}

func TestSweep_WorksPartitionByPartition(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "ci")
	b.exec(`INSERT INTO p_ci_builds (id, partition_id, project_id, user_id) SELECT i, 100 + i % 2, 1, 1 + i % 3 FROM generate_series(1, 30) i`)
	c := b.catalog(map[string][]string{"p_ci_builds": {"user_id"}})
	r, _ := rowset.RowsOf(c, "p_ci_builds", "user_id", "1")
	parts, err := rowset.Parts(context.Background(), c, r, generous)
	assert.Require(t, err == nil && len(parts) == 2 && r.Partitioned() && !parts[0].Partitioned(), "%d partitions with rows, %v", len(parts), err)
	for _, part := range parts {
		result := b.swept(part, rowset.Change{Set: []string{"user_id"}}, rowset.Batch{Rows: 5})
		assert.That(t, result.Changed == 5 && result.Last != nil, "%+v", result)
	}
	b.want(`SELECT count(*) FROM p_ci_builds WHERE user_id IS NULL`, "10")
}

func TestSweep_ReachesPartitionsThroughTheirTableWhereItMustNotNameThem(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "ci")
	b.exec(`INSERT INTO p_ci_builds (id, partition_id, project_id, user_id) SELECT i, 100 + i % 2, 1, 1 FROM generate_series(1, 8) i`)
	d := servicetest.Open(t, b.estate.URLAs(b.estate.Role(`GRANT USAGE ON SCHEMA public, maintenance TO {role}; GRANT SELECT, UPDATE, DELETE ON p_ci_builds TO {role};
		GRANT SELECT, INSERT, UPDATE ON maintenance.receipts, maintenance.receipt_head TO {role}`), "x"))
	c := assert.Must(d.Schema.Catalog(context.Background(), map[string][]string{"p_ci_builds": {"user_id"}}))(t)
	r, _ := rowset.RowsOf(c, "p_ci_builds", "user_id", "1")
	parts, err := rowset.Parts(context.Background(), c, r, generous)
	assert.Require(t, err == nil && len(parts) == 2, "%d partitions, %v", len(parts), err)
	result := b.swept(parts[0], rowset.Change{Delete: true}, rowset.Batch{Rows: 100})
	assert.That(t, result.Changed == 4, "%+v", result)
	b.want(`SELECT string_agg(DISTINCT partition_id::text, ',') FROM p_ci_builds`, "101")
}

func TestSweep_ChangesNothingWithoutItsGuard(t *testing.T) {
	b := numbered(servicetest.Parallel(t), "3")
	r := b.rows("t", "owner", "1")
	lease := assert.Must(b.Leases.AcquireLease(context.Background(), "a", "me", time.Minute))(t)
	assert.NoError(t, b.Leases.ReleaseLease(context.Background(), lease.Fence))
	release := b.estate.Hold(`SELECT pg_advisory_xact_lock(77)`)
	b.exec(`INSERT INTO maintenance.river_job (id, kind, args, state, attempt, attempted_at, max_attempts)
		VALUES (2, 'k', '{}', 'running', 1, '2026-01-01 00:00:00Z', 25)`)
	attempt := fencing.AttemptOf{ID: 2, AttemptedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}.Guard().WithLock(77)
	for want, guard := range map[error]fencing.Guard{
		dberr.ErrLeaseLost: lease.Guard(), dberr.ErrBusy: attempt,
		dberr.ErrJobLost: fencing.AttemptOf{ID: 1, AttemptedAt: time.Now()}.Guard().WithLock(77),
	} {
		batch := rowset.Batch{Permit: fencing.Permit{Guard: guard, Limits: generous}, Rows: 100}
		direct, behind := batch, batch
		direct.Direct, behind.Direct, behind.After = true, true, new(int64)
		for _, batch := range []rowset.Batch{batch, direct, behind} {
			if _, err := r.Sweep(context.Background(), rowset.Change{Delete: true}, batch); !errors.Is(err, want) {
				t.Errorf("%+v: got %v, want %v", batch, err, want)
			}
		}
		if _, err := r.Take(context.Background(), []catalog.Column{{Name: "id", Type: "bigint"}}, [][]string{nil}, batch); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	b.want(`SELECT count(*) FROM t`, "6")
	release()
	result := b.swept(r, rowset.Change{Delete: true}, rowset.Batch{Permit: fencing.Permit{Guard: attempt}, Rows: 100})
	assert.That(t, result.Changed == 3, "%+v", result)
}

func TestSweep_TakesKeysOfRowsAndSaysWhatRefersToThem(t *testing.T) {
	b := numbered(servicetest.Parallel(t), "5")
	b.exec(`ALTER TABLE t ADD UNIQUE (id, path); CREATE TABLE c (t_id bigint, t_path text, FOREIGN KEY (t_id, t_path) REFERENCES t (id, path));
		INSERT INTO c VALUES (3, 'p2'), (3, 'p2'), (9, 'p8')`)
	columns := []catalog.Column{{Name: "id", Type: "bigint"}, {Name: "path", Type: "text"}}
	values, err := b.rows("t", "owner", "1").Take(context.Background(), columns, [][]string{{"1"}, {"p0"}}, rowset.Batch{Permit: unguarded(), Rows: 10})
	assert.Require(t, err == nil && slices.Equal(values[0], []string{"3", "5", "7", "9"}) &&
		slices.Equal(values[1], []string{"p2", "p4", "p6", "p8"}), "%v, %v", values, err)
	c := b.catalog(nil)
	children := rowset.Children(c, c.References(catalog.Table{Schema: "public", Name: "t"})[0], values)
	places := assert.Must(children.Refer(context.Background(), generous))(t)
	assert.That(t, slices.Equal(places, []int{0, 3}), "%v", places)
	some, err := b.Sweeps.Any(context.Background(), []rowset.Rows{children, b.rows("t", "owner", "5")}, generous)
	assert.That(t, err == nil && slices.Equal(some, []bool{true, false}), "%v, %v", some, err)
	result := b.swept(children, rowset.Change{Delete: true}, rowset.Batch{Rows: 2})
	assert.That(t, result.Changed == 2, "%+v", result)
	b.want(`SELECT count(*) FROM c`, "1")

	// Arrays may be of several lengths.
	b.exec(`DROP TABLE c; CREATE TABLE a (path int[] PRIMARY KEY); CREATE TABLE c (id bigint PRIMARY KEY, path int[] REFERENCES a);
		INSERT INTO a VALUES ('{1,2}'), ('{3}'), ('{4}'); INSERT INTO c VALUES (1, '{1,2}'), (2, '{3}')`)
	c = b.catalog(nil)
	children = rowset.Children(c, c.References(catalog.Table{Schema: "public", Name: "a"})[0], [][]string{{"{4}", "{1,2}", "{3}"}})
	places = assert.Must(children.Refer(t.Context(), generous))(t)
	assert.That(t, slices.Equal(places, []int{1, 2}), "%v", places)
	assert.Equal(t, b.swept(children, rowset.Change{Delete: true}, rowset.Batch{Rows: 5}).Changed, 2)
}

// sweptTables are a parent of 1000 rows, and children of 80,000. Half of the children belong to one
// owner and refer to one of those parents. The others refer to none.
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

// sweptData is a database with these tables: statistics that were never made, are of the time
// before the owner had rows, or of now. or of now, and integers in the place of bigints.
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
func sweptRows(t *testing.T, c *catalog.Catalog) map[string]rowset.Rows {
	t.Helper()
	id := catalog.Column{Name: "id", Type: "bigint"}
	keys := rowset.Match{Columns: []catalog.Column{id}, Values: [][]string{numbers(70_001, 71_000)}}
	owner, _ := rowset.RowsOf(c, "piece", "owner", "1")
	conditional := owner
	conditional.Condition = "t.kind <> '1'"
	parents, _ := rowset.RowsOf(c, "piece", "parent_id", numbers(1, 1000)...)
	wholes := c.References(catalog.Table{Schema: "public", Name: "whole"})
	assert.Require(t, len(wholes) == 1, "%d foreign keys", len(wholes))
	var bs []string
	for i := range 1000 {
		bs = append(bs, strconv.Itoa((i+1)%7))
	}
	composite := rowset.Children(c, wholes[0], [][]string{numbers(1, 1000), bs})
	return map[string]rowset.Rows{
		"of an owner": owner, "of an owner with a condition": conditional, "of parents": parents, "of parents with two columns": composite,
		"portion of an owner": owner.Where(keys), "portion of parents": parents.Where(keys), "portion of parents with two columns": composite.Where(keys),
	}
}

// sweptStatements are all statements about some rows.
func sweptStatements(r rowset.Rows, b rowset.Batch) map[string]func(context.Context) error {
	ghost, behind := int64(5), int64(50_000)
	sweep := func(c rowset.Change, change func(*rowset.Batch)) func(context.Context) error {
		b := b
		change(&b)
		return func(ctx context.Context) error { return second(r.Sweep(ctx, c, b)) }
	}
	calls := map[string]func(context.Context) error{
		"any": func(ctx context.Context) error {
			return second(rowset.NewSweeps(r.Database).Any(ctx, []rowset.Rows{r}, generous))
		},
		"take": func(ctx context.Context) error {
			_, err := r.Take(ctx, []catalog.Column{{Name: "id", Type: "bigint"}}, [][]string{numbers(40_001, 41_000)}, b)
			return err
		},
	}
	if len(r.Match) == 1 {
		calls["refer"] = func(ctx context.Context) error { return second(r.Refer(ctx, generous)) }
	}
	calls["report"] = sweep(rowset.Change{Delete: true, Report: "kind"}, func(*rowset.Batch) {})
	for name, c := range map[string]rowset.Change{"delete": {Delete: true}, "move": {Set: []string{"owner"}, Value: &ghost}} {
		calls[name] = sweep(c, func(*rowset.Batch) {})
		calls[name+" what is unlocked"] = sweep(c, func(b *rowset.Batch) { b.SkipLocked = true })
		calls[name+" on"] = sweep(c, func(b *rowset.Batch) { b.After = &behind })
		calls[name+" directly"] = sweep(c, func(b *rowset.Batch) { b.Direct = true })
		calls[name+" directly on"] = sweep(c, func(b *rowset.Batch) { b.Direct, b.After = true, &behind })
	}
	return calls
}

func TestSweep_PlansKeepToIndexes(t *testing.T) {
	for _, index := range []string{"owner", "owner, id"} {
		for _, statistics := range []string{"none", "old", "new", "narrow"} {
			t.Run(fmt.Sprintf("%s statistics, index of %s", statistics, index), func(t *testing.T) {
				url := sweptData(servicetest.Parallel(t), statistics)
				conn := servicetest.Connect(t, url)
				assert.Must(conn.Exec(context.Background(), "CREATE INDEX ON piece ("+index+")"))(t)
				d, heard := listening(t, url)
				c := assert.Must(d.Schema.Catalog(context.Background(), map[string][]string{"piece": {"id", "owner", "parent_id"}}))(t)
				b := newBig(t, d)
				for kind, rows := range sweptRows(t, c) {
					for name, call := range sweptStatements(rows, rowset.Batch{Permit: by(b.fence), Rows: 1000}) {
						t.Run(name+" "+kind, func(t *testing.T) { wantSweptPlans(t, conn, heard, call) })
					}
				}
			})
		}
	}
}

// wantSweptPlans has a call send its statements, and checks how each is carried out.
func wantSweptPlans(t *testing.T, conn *pgx.Conn, heard *listener, call func(context.Context) error) {
	t.Helper()
	heard.statements = nil
	if err := call(context.Background()); err != nil && !errors.Is(err, dberr.ErrLeaseLost) {
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
