// Package orphans contains the SQL that finds rows whose parents are missing.
package orphans

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// Orphans are rows of a child whose parent is missing without a record of its deletion. The parent
// was deleted before its table was tracked, or the rows were inserted later. The audit finds them
// by keys: those that a child refers to, except those that a parent has or that have pending
// records.

// referredSQL reads the next $1 keys that a child refers to, each once. It uses a skip scan of the
// index on its columns: the cost grows with the keys, not with the rows. It applies only those of
// the definition's conditions that an index may begin with. Only for the few keys without a parent,
// the audit checks whether rows are left to change.
const referredSQL = `
WITH RECURSIVE referred ({parent_values}, n) AS (
  (SELECT {child_columns}, 1 FROM {child} t WHERE {present}{behind}{equalities}
   ORDER BY {child_columns} LIMIT 1)
  UNION ALL
  SELECT {next_values}, x.n FROM referred k CROSS JOIN LATERAL (
    SELECT {named_columns}, k.n + 1 AS n FROM {child} t
    WHERE {present} AND ({child_columns}) > ({last_values}){equalities}
    ORDER BY {child_columns} LIMIT 1
  ) x WHERE k.n < $1
)
SELECT ARRAY[{texts}] FROM referred k ORDER BY k.n`

// Referred returns the next keys that the child refers to after a key, in the order of its index,
// up to limit, without NULLs. The zero key is before all others. A replica may answer if the
// context has a reader: the keys are candidates.
func Referred(ctx context.Context, c *lfk.Child, after lfk.Key, limit int, l fencing.Limits) ([]lfk.Key, error) {
	args := stmt.Parameters{limit}
	var present, names, last, texts, begin, next, named []string
	for i, column := range c.Key.Columns {
		name := fmt.Sprintf("k%d", i+1)
		present = append(present, "t."+stmt.Quote(column)+" IS NOT NULL")
		next, named = append(next, "x."+name), append(named, "t."+stmt.Quote(column)+" AS "+name)
		names, last, texts = append(names, name), append(last, "k."+name), append(texts, "k."+name+"::text")
	}
	lower := ""
	if values := after.Values(); len(values) == len(c.Key.Columns) {
		for i, column := range c.Key.Columns {
			begin = append(begin, c.Value(&args, column, values[i]))
		}
		lower = " AND (" + lfk.Referring(c.Key.Columns) + ") > (" + strings.Join(begin, ", ") + ")"
	}
	equalities := c.Equalities(&args)
	find := pg.NewQuery("find keys of "+c.Key.String(), stmt.Fill(referredSQL,
		"{child}", c.Table().SQL(), "{child_columns}", lfk.Referring(c.Key.Columns),
		"{parent_values}", strings.Join(names, ", "), "{last_values}", strings.Join(last, ", "),
		"{texts}", strings.Join(texts, ", "), "{present}", strings.Join(present, " AND "),
		"{next_values}", strings.Join(next, ", "), "{named_columns}", strings.Join(named, ", "),
		"{behind}", lower, "{equalities}", equalities), args...)
	rows, _, err := pg.ReplicaRows(ctx, c.Database, l, find, pgx.RowTo[[]string])
	keys := make([]lfk.Key, len(rows))
	for i, values := range rows {
		keys[i] = lfk.KeyOf(values...)
	}
	return keys, err
}

// Parent is a parent table in one database, and how its deletions are recorded there.
type Parent struct {
	// rows are the parent's rows, by the recorded columns.
	rows  *lfk.Child
	queue lfk.DeletedRecords
	// values means that the key is recorded as texts.
	values bool
}

// Database returns the database that contains the table.
func (p *Parent) Database() *pg.Database { return p.rows.Database }

// Recorded returns the table's name in records.
func (p *Parent) Recorded() string { return p.rows.Table().Schema + "." + p.rows.Table().Name }

// Parent returns a table of this database as a parent with these key columns, as texts or as one
// integer. It returns nil if the table does not exist. It reads the queue, too.
func (d Orphans) Parent(
	ctx context.Context, table string, columns []string, values bool,
) (*Parent, error) {
	rows, err := lfk.NewChildren(d.db).Children(ctx, []lfk.Definition{
		{Table: table, Columns: columns, Parent: table, OnDelete: lfk.AsyncDelete},
	})
	if err != nil || rows[0] == nil {
		return nil, err
	}
	queue, err := lfk.NewQueue(d.db).DeletedRecords(ctx)
	return &Parent{rows: rows[0], queue: queue, values: values}, err
}

// Refuses returns why no records of the table can be written, "" if they can.
func (p *Parent) Refuses() string {
	switch {
	case !p.queue.Exists:
		return "database " + p.Database().Name + " has no queue: run `caretaker lfk install " +
			"--database " + p.Database().Name + "`"
	case p.values && !p.queue.Wide:
		return "the queue of " + p.Database().Name + " accepts only single-integer keys: run " +
			"`caretaker lfk install --database " + p.Database().Name + "`"
	}
	return ""
}

const horizonSQL = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text`

// Horizon returns the first transaction id not yet used by the database, for [Parent.Record].
func (p *Parent) Horizon(ctx context.Context) (horizon string, err error) {
	err = pg.QueryRow(ctx, p.Database(), "read the transaction horizon", []any{&horizon}, horizonSQL)
	return horizon, err
}

const endedSQL = `SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8`

// Ended reports whether all transactions that were open at a horizon have ended.
func (p *Parent) Ended(ctx context.Context, horizon string) (ended bool, err error) {
	err = pg.QueryRow(ctx, p.Database(), "wait for older transactions", []any{&ended}, endedSQL, horizon)
	return ended, err
}

// Missing returns the keys without a row in the table or its partitions with pending detachment.
func (p *Parent) Missing(ctx context.Context, keys []lfk.Key, l fencing.Limits) ([]lfk.Key, error) {
	missing := slices.Clone(keys)
	for _, rows := range append([]*lfk.Child{p.rows}, p.rows.Detaching...) {
		there, err := rows.Remaining(ctx, missing, l)
		if err != nil {
			return nil, err
		}
		found := make(map[lfk.Key]bool, len(there))
		for _, k := range there {
			found[k] = true
		}
		missing = slices.DeleteFunc(missing, func(k lfk.Key) bool { return found[k] })
	}
	return missing, nil
}

// maxWaiting is the maximum number of a parent's records to compare with the found keys.
const maxWaiting = 10_000

// waitingRecordsSQL reads the keys of a table's records, pending or dead, up to a bound. One more
// shows that there are too many.
const waitingRecordsSQL = `
(SELECT {key_number} AS number, {key_values} AS key_values FROM {queue}
 WHERE partition = ANY ({partitions}) AND fully_qualified_table_name = $1 AND status = 1
 ORDER BY partition, fully_qualified_table_name, consume_after, id LIMIT $2)
UNION ALL`

const waitingDeadSQL = `
(SELECT CASE WHEN key_values IS NULL THEN primary_key_value END, key_values
 FROM maintenance.dead_records WHERE fully_qualified_table_name = $1 ORDER BY id LIMIT $2)`

// Waiting returns the keys of the table's records, pending or dead. busy means more than 10,000,
// too many to compare with: then it returns none.
func (p *Parent) Waiting(ctx context.Context, l fencing.Limits) (waiting map[lfk.Key]bool, busy bool, err error) {
	if !p.queue.Exists {
		return nil, false, nil
	}
	sql := p.queue.Union(waitingRecordsSQL, "") + waitingDeadSQL
	read := pg.NewQuery("read pending records", sql, p.Recorded(), maxWaiting+1)
	records, err := pg.ReadRows(ctx, p.Database(), l, read, pgx.RowToStructByPos[lfk.RecordKey])
	if err != nil || len(records) > maxWaiting {
		return nil, err == nil, err
	}
	waiting = make(map[lfk.Key]bool, len(records))
	for _, r := range records {
		waiting[r.Key()] = true
	}
	return waiting, false, nil
}

// recordOrphansSQL records keys without a row of the parent as their deletion would have. A row
// inserted but not committed at the check of its key belongs to the parent. So nothing is recorded
// before all transactions of that time have ended.
const recordOrphansSQL = `
WITH {guard},
ended AS MATERIALIZED (
  SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $2::text::xid8 AS all_of_them
),
recorded AS (
  INSERT INTO {queue} (fully_qualified_table_name, {recorded_columns})
  SELECT $3, {recorded_values} FROM guard CROSS JOIN ended CROSS JOIN {parents}
  WHERE ended.all_of_them AND NOT EXISTS (SELECT FROM {child} t WHERE {matched})
  ORDER BY k.n
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM recorded), (SELECT all_of_them FROM ended)`

// Record writes the records of keys that still no row of the table has, and returns their number.
// late means that a transaction older than the horizon is still open: nothing was written, try
// again. A key that the encoding of the database cannot hold gets no record.
func (p *Parent) Record(
	ctx context.Context, permit fencing.Permit, keys []lfk.Key, horizon string,
) (n int64, late bool, err error) {
	columns, values := "primary_key_value", "k.k1"
	if p.values {
		var texts []string
		for i := range p.rows.Key.Columns {
			texts = append(texts, fmt.Sprintf("k.k%d::text", i+1))
		}
		columns = "primary_key_value, key_values"
		values = "0, ARRAY[" + strings.Join(texts, ", ") + "]"
	}
	var ended bool
	_, err = p.rows.Asked(ctx, keys, permit.Limits, func(keys []lfk.Key) error {
		insert, err := p.rows.Query("queue records for orphans of",
			pg.Journaled(recordOrphansSQL, "('queued_records', (SELECT count(*) FROM recorded))", 4), keys,
			[]any{horizon, p.Recorded(), permit.RunID}, "{queue}", p.queue.SQL, "{recorded_columns}", columns,
			"{recorded_values}", values)
		if err != nil {
			return err
		}
		insert.Table = p.queue.Name
		return pg.Write(ctx, p.Database(), permit, insert, spans.Affected{Rows: &n}, &ended)
	})
	return n, err == nil && !ended, err
}

// AuditPlace is the progress of an audit with a definition in a database that has its child.
type AuditPlace struct {
	Definition, Database string
	// After is the last checked key, none at the beginning.
	After []string
	// Done means that all keys have been checked.
	Done bool
	// Found is the result since the place was last saved.
	Found AuditFound `db:"-"`
}

// AuditFound counts checked keys, those without a parent, and rows that refer to the latter.
type AuditFound struct{ Keys, Orphans, Rows int64 }

const auditPlacesSQL = `
SELECT definition, database, coalesce(after, '{}'), done FROM maintenance.orphan_audits
ORDER BY definition, database`

// AuditPlaces returns the places of the running audit, none between two audits.
func (d Orphans) AuditPlaces(ctx context.Context) ([]AuditPlace, error) {
	read := pg.NewQuery("read the progress of the audit", auditPlacesSQL)
	places, err := pg.Collect(ctx, d.db, read, pgx.RowToStructByPos[AuditPlace])
	for _, p := range places {
		for i, v := range p.After {
			if text, err := strconv.Unquote(v); err == nil && strings.HasPrefix(v, `"`) {
				p.After[i] = text
			}
		}
	}
	return places, err
}

// inASCII returns texts that main can hold in any encoding, others quoted as in Go.
func inASCII(values []string) []string {
	texts := []string{}
	for _, v := range values {
		if quoted := strconv.QuoteToASCII(v); quoted != `"`+v+`"` {
			v = quoted
		}
		texts = append(texts, v)
	}
	return texts
}

const saveAuditPlaceSQL = `
WITH {guard},
saved AS (
  INSERT INTO maintenance.orphan_audits AS a (definition, database, after, done)
  SELECT $1, $2, nullif($3::text[], '{}'), $4 FROM guard
  ON CONFLICT (definition, database) DO UPDATE SET after = EXCLUDED.after, done = EXCLUDED.done
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard)`

// SaveAuditPlace keeps a place for the next run.
func (d Orphans) SaveAuditPlace(ctx context.Context, p fencing.Permit, place AuditPlace) error {
	sql := pg.Journaled(saveAuditPlaceSQL, "('examined_keys', (SELECT $6::bigint FROM saved)), "+
		"('orphaned_keys', (SELECT $7::bigint FROM saved)), ('orphaned_rows', (SELECT $8::bigint FROM saved))", 5)
	return pg.Write(ctx, d.db, p, pg.NewQuery("save the progress of the audit", sql, place.Definition, place.Database,
		inASCII(place.After), place.Done, p.RunID, place.Found.Keys, place.Found.Orphans, place.Found.Rows))
}

const endAuditSQL = `
WITH {guard},
ended AS (DELETE FROM maintenance.orphan_audits WHERE EXISTS (SELECT FROM guard))
SELECT EXISTS (SELECT FROM guard)`

// EndAudit deletes all places: the next run starts a new audit.
func (d Orphans) EndAudit(ctx context.Context, p fencing.Permit) error {
	return pg.Write(ctx, d.db, p, pg.NewQuery("end the audit", endAuditSQL))
}

const auditBacklogSQL = `
SELECT count(*), clock_timestamp() FROM maintenance.orphan_audits WHERE NOT done`

// AuditBacklog counts the definitions, by database, that the running audit has yet to check.
func (d Orphans) AuditBacklog(ctx context.Context) (b control.Backlog, err error) {
	err = pg.QueryRow(ctx, d.db, "count the remaining rows of the audit", []any{&b.Pending, &b.ReadAt},
		auditBacklogSQL)
	b.Due = b.Pending
	return b, err
}
