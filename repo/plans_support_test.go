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
)

// sent is a statement with its arguments.
type sent struct {
	sql  string
	args []any
}

// listener keeps the statements that a Database sends; those under limits come behind their settings. Many connections
// use it at the same time.
type listener struct {
	mu         sync.Mutex
	statements []sent
}

func (l *listener) add(sql string, args []any) {
	if sql == "SET CONSTRAINTS ALL IMMEDIATE" || strings.HasPrefix(sql, "\nDO '") {
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
	config.ConnConfig.Tracer = l
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
			// The end of an index, with a limit of one: from 17 on there need be no condition that says so.
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
func by(f repo.Fence) repo.Permit { return repo.Permit{Guard: f.Guard(), Limits: generous} }

// locking is a permit of whoever has an advisory lock.
func locking(key int64) repo.Permit {
	return repo.Permit{Guard: repo.AdvisoryLock(key), Limits: generous}
}
