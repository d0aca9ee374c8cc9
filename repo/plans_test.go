package repo_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
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
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// bigTables are children of 200,000 rows, a queue of 100,000 records in four partitions, and notes of failures. The one
// with a condition always has statistics: without, the planner takes a condition for rare, and rightly reads its index.
const bigTables = `
CREATE TABLE plain (id bigserial PRIMARY KEY, p_id bigint, kind text, x smallint) WITH (autovacuum_enabled = off);
INSERT INTO plain (p_id, kind) SELECT i % 10000, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON plain (p_id);
CREATE TABLE narrow (id bigserial PRIMARY KEY, p_id integer, kind text, x smallint) WITH (autovacuum_enabled = off);
INSERT INTO narrow (p_id, kind) SELECT i % 10000, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON narrow (kind, p_id);
CREATE INDEX ON narrow (kind);
ANALYZE narrow;
CREATE TABLE dense (id bigserial PRIMARY KEY, p_id bigint, kind text, x smallint) WITH (autovacuum_enabled = off);
INSERT INTO dense (p_id, kind) SELECT i % 200, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON dense (p_id);
CREATE TABLE composite (a integer, b integer, p_id bigint, kind text, x smallint, PRIMARY KEY (a, b)) WITH (autovacuum_enabled = off);
INSERT INTO composite (a, b, p_id, kind) SELECT i / 100, i, i % 10000, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON composite (p_id);
CREATE TABLE parted (id bigserial, leaf integer, p_id bigint, kind text, x smallint, PRIMARY KEY (id, leaf)) PARTITION BY LIST (leaf);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2) WITH (autovacuum_enabled = off);
INSERT INTO parted (leaf, p_id, kind) SELECT i % 3, i % 10000, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON parted (p_id);
CREATE TABLE paired (id bigserial PRIMARY KEY, p_id bigint, other varchar(20), one uuid, kind text, x smallint) WITH (autovacuum_enabled = off);
INSERT INTO paired (p_id, other, one, kind) SELECT i % 10000, 'n' || i % 10000, md5((i % 10000)::text)::uuid, i % 3 FROM generate_series(1, 200000) i;
CREATE INDEX ON paired (p_id, other);
CREATE INDEX ON paired (one);
CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_2 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (2);
CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_3 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (3);
CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_4 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (4);
ALTER TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_1 SET (autovacuum_enabled = off);
ALTER TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_2 SET (autovacuum_enabled = off);
ALTER TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_3 SET (autovacuum_enabled = off);
ALTER TABLE maintenance.record_failures SET (autovacuum_enabled = off);
INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value, consume_after)
SELECT 1 + i % 3, i, 'public.p' || i % 4, i % 10000, CASE WHEN i % 10 > 0 THEN now() - i * interval '1 second' END FROM generate_series(1, 100000) i;
INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
SELECT 1 + i % 3, i, 1, 1, 'c.p_id -> p', 'P0001' FROM generate_series(1, 20000) i;
ALTER TABLE maintenance.record_traces SET (autovacuum_enabled = off);
INSERT INTO maintenance.record_traces (partition, record_id, traceparent)
SELECT 1 + i % 3, i, format('00-%s-%s-01', lpad(i::text, 32, '0'), lpad(i::text, 16, '0')) FROM generate_series(1, 20000) i;
ALTER TABLE maintenance.river_job SET (autovacuum_enabled = off);
INSERT INTO maintenance.river_job (kind, args, metadata, max_attempts, queue, state, scheduled_at, finalized_at)
SELECT CASE WHEN i = 120000 THEN 'destroy_group' ELSE 'delete_user' END, format('{"user_id": %s}', i)::jsonb, '{"processed_by": "x"}', 25,
  CASE WHEN i = 120000 THEN 'destroy_group' ELSE 'default' END, s.state::maintenance.river_job_state, now() - interval '1 hour',
  CASE WHEN s.state IN ('completed', 'discarded') THEN now() END
FROM generate_series(1, 120000) i CROSS JOIN LATERAL (
  SELECT CASE WHEN i > 119000 OR i % 2 = 0 THEN 'available' WHEN i % 100 = 1 THEN 'discarded' ELSE 'completed' END AS state) s`

// bigData is a database with the big tables.
func bigData(t *testing.T) string {
	t.Helper()
	return databases.Clone(t, loaded("repo_big", "main", bigTables))
}

// big is the database under test.
type big struct {
	*repo.Database
	t       *testing.T
	queue   lfk.DeletedRecords
	fence   fencing.Fence
	records []lfk.Record
}

func newBig(t *testing.T, d *repo.Database) *big {
	t.Helper()
	b := &big{Database: d, t: t}
	var err error
	if b.queue, err = d.Queue.DeletedRecords(context.Background()); err != nil {
		t.Fatal(err)
	}
	lease := assert.Must(d.Leases.AcquireLease(context.Background(), "plans", "test", time.Hour))(t)
	b.fence = lease.Fence
	// Without the lease nothing is changed: all statements find the same rows.
	assert.NoError(t, d.Leases.ReleaseLease(context.Background(), b.fence))
	for i := range 500 {
		b.records = append(b.records, lfk.Record{RecordID: lfk.RecordID{Partition: int64(1 + (i*7)%3), ID: strconv.Itoa(i * 7)}, Key: lfk.IntKey(int64(i))})
	}
	return b
}

var generous = fencing.Limits{Statement: time.Minute, Lock: 30 * time.Second}

// statements are the queue's, each with a call that sends it.
func (b *big) statements() map[string]func(context.Context) error {
	load := lfk.RecordPage{Parent: "public.p1", Limit: 500, Since: true}
	return map[string]func(context.Context) error{
		"due parents": func(ctx context.Context) error { return second(b.Queue.DueParents(ctx, b.queue, generous)) },
		"load":        func(ctx context.Context) error { return second(b.Queue.LoadRecords(ctx, b.queue, load, generous)) },
		"load on": func(ctx context.Context) error {
			on := load
			page, err := b.Queue.LoadRecords(ctx, b.queue, load, generous)
			if on.After = page.After; err == nil {
				_, err = b.Queue.LoadRecords(ctx, b.queue, on, generous)
			}
			return err
		},
		"empty partitions": func(ctx context.Context) error { return second(b.Queue.DropPartitions(ctx, by(b.fence), b.queue)) },
		"remove": func(ctx context.Context) error {
			return second(b.Queue.RemoveRecords(ctx, by(b.fence), b.queue, b.records))
		},
		"postpone": func(ctx context.Context) error {
			return second(b.Queue.PostponeRecords(ctx, by(b.fence), b.queue, b.records))
		},
		"claims": func(ctx context.Context) error {
			return second(b.Queue.Claims(ctx, b.queue, b.parent(ctx), b.records, generous))
		},
		"charge": func(ctx context.Context) error {
			return third(b.Queue.ChargeRecords(ctx, by(b.fence), b.queue, b.records))
		},
		"fail": func(ctx context.Context) error {
			var failures []lfk.RecordFailure
			for _, r := range b.records {
				failures = append(failures, lfk.RecordFailure{Record: r, Isolated: true, Definition: "c.p_id -> p", SQLState: "P0001", Message: "it's"})
			}
			_, _, err := b.Queue.FailRecords(ctx, by(b.fence), b.queue, failures)
			return err
		},
	}
}

// figures are statements for metrics and traces, which run again and again.
func (b *big) figures() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"jobs": func(ctx context.Context) error {
			counts, err := b.Jobs.CountJobs(ctx)
			for _, c := range counts {
				assert.That(b.t, c.State != "available" || c.Overdue >= 50*time.Minute,
					"%s: the oldest has been due for %s, want an hour", c.Kind, c.Overdue)
			}
			assert.That(b.t, len(counts) == 3, "%d counts: %+v", len(counts), counts)
			return err
		},
		"failed jobs": func(ctx context.Context) error {
			failed, err := b.Jobs.FailedJobs(ctx)
			assert.That(b.t, len(failed) == 1 && failed[0].Waiting == 0 && failed[0].Discarded == 1001 &&
				failed[0].AtLeast, "failed jobs: %+v", failed)
			return err
		},
		"traces of records":   func(ctx context.Context) error { return second(b.Queue.RecordTraces(ctx, b.records, 16, generous)) },
		"traces of deletions": func(ctx context.Context) error { return second(b.Ghosts.DeletionTraces(ctx, 7, generous)) },
	}
}

// parent is a table with the rows of many keys.
func (b *big) parent(ctx context.Context) *lfk.ParentTable {
	b.t.Helper()
	tables := assert.Must(b.Queue.ParentTables(ctx, []string{"public.plain"}, lfk.RecordedKeys{}, nil, generous))(b.t)
	assert.Require(b.t, tables["public.plain"].Exists(), "parents %v", tables)
	return tables["public.plain"]
}

// childStatements are those of a definition. Its keys are 500 of which half have rows.
func (b *big) childStatements(key lfk.Definition) map[string]func(context.Context) error {
	b.t.Helper()
	children, err := b.Children.Children(context.Background(), []lfk.Definition{key})
	assert.Require(b.t, err == nil && children[0] != nil, "%s: %v", key, err)
	c := children[0]
	if key.Table != "paired" { // its keys are no integers
		if err := c.MatchKey(lfk.RecordedKey{}, b.parent(context.Background())); err != nil {
			b.t.Fatal(err)
		}
	}
	var keys []lfk.Key
	for i := range 500 {
		n := strconv.Itoa(9750 + i)
		switch {
		case len(key.Columns) > 1:
			keys = append(keys, lfk.KeyOf(n, "n"+n))
		case key.Columns[0] == "one":
			sum := md5.Sum([]byte(n))
			keys = append(keys, lfk.KeyOf(hex.EncodeToString(sum[:])))
		default:
			keys = append(keys, lfk.IntKey(int64(9750+i)))
		}
	}
	p := lfk.Purge{Permit: by(b.fence), Keys: keys, Approved: keys, Cap: 20_000}
	all := func(records []lfk.Record) func(context.Context) error {
		return func(ctx context.Context) error { return second(c.PurgeAll(ctx, p, b.queue, records)) }
	}
	shares := func(skip bool) func(context.Context) error {
		return func(ctx context.Context) error { return second(c.PurgeShares(ctx, p, 40, skip)) }
	}
	return map[string]func(context.Context) error{
		"all": all(nil), "all and removal": all(b.records), "shares": shares(false), "shares unlocked": shares(true),
		"remaining": func(ctx context.Context) error { return second(c.Remaining(ctx, keys, generous)) },
		"count":     func(ctx context.Context) error { return second(c.Count(ctx, keys, 100_000, generous)) },
		"uncounted": func(ctx context.Context) error {
			p := p
			p.Uncounted = true
			return second(c.PurgeAll(ctx, p, b.queue, nil))
		},
	}
}

func TestLooseForeignKeys_PlansKeepToIndexes(t *testing.T) {
	for _, analyzed := range []bool{false, true} {
		t.Run(fmt.Sprintf("analyzed %v", analyzed), func(t *testing.T) {
			t.Parallel()
			url := bigData(t)
			conn := servicetest.Connect(t, url)
			if analyzed {
				assert.Must(conn.Exec(context.Background(), "ANALYZE"))(t)
			}
			d, heard := listening(t, url)
			b := newBig(t, d)
			calls := map[string]func(context.Context) error{}
			for name, call := range b.statements() {
				calls["queue "+name] = call
			}
			for name, call := range b.figures() {
				calls["figures "+name] = call
			}
			for _, columns := range [][]string{{"one"}, {"p_id", "other"}} {
				for _, action := range []string{lfk.AsyncDelete, lfk.AsyncNullify} {
					key := lfk.Definition{Table: "paired", Columns: columns, Parent: "p1", OnDelete: action}
					for name, call := range b.childStatements(key) {
						calls[strings.Join([]string{"paired", columns[0], action, name}, " ")] = call
					}
				}
			}
			for _, table := range []string{"plain", "narrow", "dense", "composite", "parted"} {
				for _, action := range []string{lfk.AsyncDelete, lfk.AsyncNullify, lfk.UpdateColumnTo} {
					key := lfk.Definition{Table: table, Columns: []string{"p_id"}, Parent: "p1", OnDelete: action}
					if action == lfk.UpdateColumnTo {
						key.TargetColumn, key.TargetValue = "x", "4"
					}
					if table == "narrow" {
						key.Conditions = []lfk.ColumnValue{{Column: "kind", Value: "1"}}
					}
					for name, call := range b.childStatements(key) {
						calls[strings.Join([]string{table, action, name}, " ")] = call
					}
				}
			}
			for name, call := range calls {
				t.Run(name, func(t *testing.T) { wantIndexPlans(t, conn, heard, call) })
			}
		})
	}
}

func TestLooseForeignKeys_LoadingGoesOnInItsLeafBehindTheLastRecord(t *testing.T) {
	t.Parallel()
	url := bigData(t)
	conn := servicetest.Connect(t, url)
	d, heard := listening(t, url)
	assert.NoError(t, newBig(t, d).statements()["load on"](context.Background()))
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		nodes, text := plan(t, conn, heard.statements[len(heard.statements)-2:], mode)
		leaves, behind := map[string]bool{}, false
		for _, n := range nodes {
			if n.Relation != "" && n.Loops > 0 {
				leaves[n.Relation] = true
			}
			behind = behind || (n.Loops > 0 && strings.Contains(n.IndexCond, "ROW(consume_after, id) > "))
		}
		assert.That(t, len(leaves) == 1 && behind, "%s reads %v, behind the position: %v: %s", mode, leaves, behind, text)
	}
}

// A leaf for all other numbers is asked for those of its records by its index, and the other leaves are not.
func TestLooseForeignKeys_TheNumbersOfADefaultLeafAreReadFromItsIndex(t *testing.T) {
	t.Parallel()
	url := bigData(t)
	conn := servicetest.Connect(t, url)
	if _, err := conn.Exec(context.Background(), `
		CREATE TABLE gitlab_partitions_dynamic.others PARTITION OF loose_foreign_keys_deleted_records DEFAULT;
		INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value)
		SELECT 100 + i % 3, 'public.p1', i FROM generate_series(1, 30000) i`); err != nil {
		t.Fatal(err)
	}
	d, heard := listening(t, url)
	queue, err := d.Queue.DeletedRecords(context.Background())
	want := []int64{1, 2, 3, 4, 100, 101, 102}
	assert.Require(t, err == nil && slices.Equal(queue.Partitions, want) && queue.Leaves == 5, "%+v, %v, want %v", queue, err, want)
	nodes, text := plan(t, conn, heard.statements[len(heard.statements)-1:], "force_custom_plan")
	wantIndexes(t, nodes, text)
	for _, n := range nodes {
		assert.That(t, n.Relation == "" || n.Relation == "others", "reads %s: %s", n.Relation, text)
	}
}

// wantIndexPlans has a call send its statement, and checks how it is carried out.
func wantIndexPlans(t *testing.T, conn *pgx.Conn, heard *listener, call func(context.Context) error) {
	t.Helper()
	heard.statements = nil
	if err := call(context.Background()); err != nil && !errors.Is(err, dberr.ErrLeaseLost) {
		t.Fatal(err)
	}
	statements := heard.statements
	assert.Require(t, len(statements) != 0, "no statement")
	// The settings come first. The check of the parents and the receipt follow the statement that
	// writes rows.
	for i := range slices.Backward(statements) {
		if strings.Contains(statements[i].sql, "enable_seqscan") {
			statements = statements[i:]
			break
		}
	}
	for i := range statements {
		if strings.Contains(statements[i].sql, "enable_seqscan") {
			continue
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			nodes, text := plan(t, conn, statements[:i+1], mode)
			wantIndexes(t, nodes, text)
		}
	}
}
