package repo_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// sent is a statement with its arguments.
type sent struct {
	sql  string
	args []any
}

// listener keeps the statements that a Database sends. Those under limits follow their settings.
// Many connections use it at the same time.
type listener struct {
	mu         sync.Mutex
	statements []sent
}

func (l *listener) add(sql string, args []any) {
	if sql == "SET CONSTRAINTS ALL IMMEDIATE" || strings.HasPrefix(strings.TrimSpace(sql), "DO ") {
		return // It has no plan.
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statements = append(l.statements, sent{sql, args})
}

func (l *listener) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	l.add(d.SQL, d.Args)
	return ctx
}
func (l *listener) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (l *listener) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (l *listener) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (l *listener) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	l.add(d.SQL, d.Args)
}

// listening is a Database whose statements are kept.
func listening(t *testing.T, url string) (*repo.Database, *listener) {
	t.Helper()
	config := assert.Must(pgxpool.ParseConfig(url))(t)
	l := &listener{}
	config.ConnConfig.Tracer, config.AfterConnect = l, clampTimes
	pool := assert.Must(pgxpool.NewWithConfig(context.Background(), config))(t)
	t.Cleanup(pool.Close)
	return repo.OnPool("main", pool), l
}

// node is a node of a plan that has been carried out.
type node struct {
	Type      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	IndexCond string  `json:"Index Cond"`
	TIDCond   string  `json:"TID Cond"`
	Loops     float64 `json:"Actual Loops"`
	Rows      float64 `json:"Actual Rows"`
	Filtered  float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Plans     []node
}

// all are the node and those below it.
func (n node) all() []node {
	nodes := []node{n}
	for _, below := range n.Plans {
		nodes = append(nodes, below.all()...)
	}
	return nodes
}

// plan carries a statement out as the last of its batch, with a custom or a generic plan, and undoes it. Leases hold
// meanwhile.
func plan(t *testing.T, conn *pgx.Conn, batch []sent, mode string) (nodes []node, text string) {
	t.Helper()
	ctx := context.Background()
	tx := assert.Must(conn.Begin(ctx))(t)
	defer func() {
		_ = tx.Rollback(ctx)
		_, _ = conn.Exec(ctx, "DEALLOCATE planned")
	}()
	last := batch[len(batch)-1]
	before := append([]sent{{"UPDATE maintenance.leases SET expires_at = 'infinity'", nil}}, batch[:len(batch)-1]...)
	for _, s := range append(before, sent{"SELECT set_config('plan_cache_mode', $1, true)", []any{mode}}) {
		assert.Must(tx.Exec(ctx, s.sql, s.args...))(t)
	}
	described := assert.Must(conn.PgConn().Prepare(ctx, "", last.sql, nil))(t)
	var arguments []string
	for i, arg := range last.args {
		arguments = append(arguments, literal(t, conn.TypeMap(), described.ParamOIDs[i], arg))
	}
	assert.Must(tx.Exec(ctx, "PREPARE planned AS "+last.sql, pgx.QueryExecModeSimpleProtocol))(t)
	execute := "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned"
	if len(arguments) > 0 {
		execute += " (" + strings.Join(arguments, ", ") + ")"
	}
	err := tx.QueryRow(ctx, execute, pgx.QueryExecModeSimpleProtocol).Scan(&text)
	assert.Require(t, err == nil, "%v: %s", err, last.sql)
	var plans []struct{ Plan node }
	assert.NoError(t, json.Unmarshal([]byte(text), &plans))
	return plans[0].Plan.all(), text
}

func literal(t *testing.T, types *pgtype.Map, oid uint32, arg any) string {
	t.Helper()
	text := assert.Must(types.Encode(oid, pgtype.TextFormatCode, arg, []byte{}))(t)
	if text == nil {
		return "NULL"
	}
	return "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
}

// planning is what plans depend on besides the data: whether there are statistics, and integers in the place of bigints.
type planning struct{ analyzed, narrow bool }

func plannings() []planning {
	return []planning{{}, {analyzed: true}, {narrow: true}, {analyzed: true, narrow: true}}
}

// loaded is a database of main with some data.
func (p planning) loaded(name, sql string) devdb.Template {
	if p.narrow {
		name, sql = name+"_narrow", devdb.NarrowKeys("%")+sql
	}
	return loaded(name, "main", sql)
}

// wantIndexes fails the test if a plan reads a table other than by looking things up.
func wantIndexes(t *testing.T, nodes []node, text string) {
	t.Helper()
	const tooMany = 2000
	for _, n := range nodes {
		wrong := ""
		switch {
		case n.Loops == 0, strings.HasPrefix(n.Relation, "pg_"), n.Relation == "group_removals",
			n.Relation == "protected_targets":
			// The last have a row for each removal under way, and for what an operator has protected.
		case n.Type == "Seq Scan":
			wrong = "sequential scan"
		case strings.HasPrefix(n.Type, "Index") && n.IndexCond == "" && n.Rows+n.Filtered <= 1:
			// The end of an index, with a limit of one: from 17 on there need be no condition that reports
			// it.
		case strings.HasPrefix(n.Type, "Index") && n.IndexCond == "", n.Type == "Bitmap Index Scan" && n.IndexCond == "":
			wrong = "scan of a whole index"
		case n.Type == "Tid Scan" && n.TIDCond == "":
			wrong = "scan for no row"
		case (n.Filtered+n.Rechecked)*n.Loops > tooMany:
			wrong = fmt.Sprintf("%.0f rows read in vain", (n.Filtered+n.Rechecked)*n.Loops)
		}
		assert.That(t, wrong == "", "%s of %s: %s", n.Type, n.Relation, wrong)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// by is a permit of the holder of a lease, with all the time in the world.
func by(f fencing.Fence) fencing.Permit { return fencing.Permit{Guard: f.Guard(), Limits: generous} }

// unguarded is a permit that always holds.
func unguarded() fencing.Permit {
	return fencing.Permit{Guard: repo.Unguarded(), Limits: generous}
}

// longHistory is a main database after years: 100,000 runs and fires and 50,000 jobs. Each worker
// has a past that makes another look-up hard. The cleanup has had no run on sec for long. The ghost
// migration has failed ever since its first run and is in use again since an hour ago. The groups
// have been paused, the tokens have only been cancelled, and the placeholders are healthy.
const longHistory = `
INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, dry_run, started_at, heartbeat_at, heartbeat_ttl, finished_at, lease_epoch)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid,
  w.name, CASE WHEN i % 10 = 1 THEN 'ci' WHEN i % 5 > 0 THEN '' WHEN i < 100 THEN 'sec' WHEN i % 10 = 0 THEN 'main' ELSE 'ci' END, 'schedule',
  CASE WHEN i % 1000 = 0 THEN 'failed' WHEN i % 5 = 1 AND i > 10 THEN 'failed' WHEN i % 5 = 2 THEN 'skipped' WHEN i % 5 = 3 THEN 'cancelled' ELSE 'succeeded' END,
  CASE WHEN i % 5 = 2 THEN 'WORKER_PAUSED: for long' ELSE '' END, i % 500 = 0, at, at, interval '1 minute', at, 1
FROM generate_series(1, 100000) i
CROSS JOIN LATERAL (SELECT now() - (100001 - i) * interval '1 minute' AS at) t
CROSS JOIN LATERAL (SELECT (ARRAY['loose_foreign_keys_cleanup', 'ghost_user_migration', 'adjourned_group_deletion',
  'inactive_token_deletion', 'placeholder_user_cleanup'])[1 + i % 5] AS name) w;
INSERT INTO maintenance.fires (worker, fire_time, claimed_by, claimed_at, started_at, run_id, outcome, reason)
SELECT worker, date_trunc('minute', started_at), 'old', started_at, started_at, id,
  CASE state WHEN 'skipped' THEN 'skipped' ELSE 'ran' END, reason FROM maintenance.runs;
UPDATE maintenance.fires SET outcome = 'missed', run_id = NULL WHERE worker = 'loose_foreign_keys_cleanup' AND extract(minute FROM fire_time) = 0
  AND extract(hour FROM fire_time) = 0;
INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES
  ('loose_foreign_keys_cleanup', '* * * * *', now() - interval '2 minutes'), ('ghost_user_migration', '*/2 * * * *', now() - interval '2 minutes'),
  ('adjourned_group_deletion', '0 2 * * *', now()), ('inactive_token_deletion', '0 0 * * *', now()), ('placeholder_user_cleanup', '0 0 * * *', now());
UPDATE maintenance.schedules SET in_use_since = now() - interval '1 hour' WHERE worker = 'ghost_user_migration';
INSERT INTO maintenance.river_job (kind, args, metadata, attempt, max_attempts, state, scheduled_at, attempted_at, finalized_at)
SELECT 'delete_user', format('{"user_id": %s}', i)::jsonb, '{}', 1, 25, s.state::maintenance.river_job_state, now() - interval '1 hour', now() - interval '1 hour',
  CASE WHEN s.state <> 'retryable' THEN now() END
FROM generate_series(1, 50000) i CROSS JOIN LATERAL (
  SELECT CASE WHEN i % 1000 = 1 THEN 'discarded' WHEN i % 1000 = 2 THEN 'retryable' ELSE 'completed' END AS state) s;
INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
SELECT date_trunc('minute', now()) - i * interval '1 minute', w, 1, 1, 0, 0
FROM generate_series(1, 1440) i CROSS JOIN (SELECT DISTINCT worker AS w FROM maintenance.schedules) w;
INSERT INTO maintenance.database_samples (minute, database, pending, oldest)
SELECT date_trunc('minute', now()) - i * interval '1 minute', 'main', 1, 1 FROM generate_series(1, 1440) i;
INSERT INTO maintenance.audit (at, by, address, role, action, target, reason, outcome)
SELECT now() - (100001 - i) * interval '1 minute', 'alice', '127.0.0.1:1', 'operator', 'RunBatch', 'ghost_user_migration', '', 'OK'
FROM generate_series(1, 100000) i;
INSERT INTO maintenance.receipts (sequence, at, run_id, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
SELECT i, now() - (50000 - i) * interval '1 second', CASE WHEN i % 2 = 0 THEN (SELECT id FROM maintenance.runs ORDER BY id LIMIT 1) END, nullif(i % 2 * i, 0), 'w', 't' || i % 7, 'deleted', '', 1, '', '', ''
FROM generate_series(1, 50000) i;
UPDATE maintenance.receipt_head SET sequence = 50000;
INSERT INTO maintenance.outside_paths (job_id, run_id, kind, path, at, done_at)
SELECT CASE WHEN i % 2 = 0 THEN i / 20 END, CASE WHEN i % 2 = 1 THEN (SELECT id FROM maintenance.runs ORDER BY id LIMIT 1 OFFSET i / 100) END,
  'project_repository', '@hashed/' || i, now(), CASE WHEN i % 10 > 0 OR i < 40000 THEN now() END
FROM generate_series(1, 50000) i;
INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by, until)
SELECT 'group', i, 'r', 'a', now() + interval '1 day' FROM generate_series(1, 500) i;
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id);
INSERT INTO c (p_id) VALUES (1);
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN OLD; END';
CREATE TRIGGER nap BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION nap();
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1);
ANALYZE`

// clampTimes makes a connection read times as those of a Database do.
func clampTimes(_ context.Context, conn *pgx.Conn) error {
	stmt.ClampTimes(conn)
	return nil
}
