package lfk

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// A queue record claims that a row was deleted. The claim can be false. Partition maintenance
// deletes a row and inserts it again, a table and its copy swap names, or an application reuses a
// key. A parent row that exists is a living parent, and its children stay.

// ParentTable is the table that the records of a parent name, in the database of their queue. A
// name with several dots can belong to two tables: a row of either is a living parent.
type ParentTable struct {
	tables []parentRelation
	// Unknown means that the table exists but its key columns are unknown. Every key may be alive.
	Unknown bool
}

// Exists reports whether a table exists that may have living parents.
func (p *ParentTable) Exists() bool { return p != nil && (p.Unknown || len(p.tables) > 0) }

// parentRelation is a relation of that name with the key columns in the order of the record.
type parentRelation struct {
	// sql is the quoted name with its schema.
	sql     string
	columns []parentColumn
	// versioned means that the rows have an xmin.
	versioned, partitioned bool
}

// parentColumn is a column of a parent's key.
type parentColumn struct {
	name string
	// compared is the type that keys are compared as: see [childColumn].
	compared string
}

// parentTablesSQL finds relations by their recorded names, with the columns that may be their key.
// These are columns named by a trigger or a definition ($2), and the primary key. A table that
// GitLab write-protected after a split counts. Its rows have not changed since this queue's last
// record for them, and the other database records later deletions.
//
// It counts the keys by which deletions can have been recorded: those of unique indexes, and in
// GitLab's own queue ($3) id.
//
// Rows of a partition whose detachment is pending are not found through the table. A table that was
// renamed or moved to another schema keeps its trigger. $4 are the bare names, for the index.
const parentTablesSQL = `
WITH named AS (
  SELECT c.oid, n.nspname || '.' || c.relname AS recorded
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relname = ANY ($4) AND n.nspname || '.' || c.relname = ANY ($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), place AS (
  SELECT oid, recorded FROM named
  UNION
  SELECT i.inhrelid, named.recorded
  FROM pg_inherits i CROSS JOIN LATERAL pg_partition_ancestors(i.inhparent) a JOIN named ON named.oid = a.relid
  WHERE i.inhdetachpending
  UNION
  SELECT t.tgrelid, r.recorded
  FROM unnest($1::text[]) AS r (recorded)
  JOIN pg_trigger t ON t.tgname = (substr(r.recorded, strpos(r.recorded, '.') + 1) || '` + capture.TriggerSuffix + `')::name
  JOIN pg_class c ON c.oid = t.tgrelid AND NOT c.relispartition
  WHERE NOT EXISTS (SELECT FROM named WHERE named.recorded = r.recorded)
)
SELECT place.recorded, n.nspname, c.relname, c.relkind IN ('r', 'p'), c.relkind = 'p',
  CASE WHEN $3 THEN 1 ELSE ` + UniqueKeysSQL + ` END,
  a.attname::text, ` + comparedSQL + `, coalesce(a.attnum = ANY (i.indkey), false)
FROM place
JOIN pg_class c ON c.oid = place.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE a.attname = ANY ($2) OR a.attnum = ANY (i.indkey)`

// UniqueKeysSQL counts the unique keys of a table c.
const UniqueKeysSQL = `(
  SELECT count(DISTINCT u.indkey::text) FROM pg_index u
  WHERE u.indrelid = c.oid AND u.indisunique AND u.indisvalid AND u.indpred IS NULL AND u.indexprs IS NULL)`

// parentRow is a row of parentTablesSQL: a column of a relation.
type parentRow struct {
	Recorded, Schema, Name string
	Versioned, Partitioned bool
	Keys                   int
	Column, Compared       string
	// Primary means that the column is part of the primary key.
	Primary bool
}

// ParentTables finds the tables that the records of some parents name, by the recorded names. keys
// are those that triggers record. wanted are the columns that a parent's definitions refer to.
func (d Queue) ParentTables(
	ctx context.Context, recorded []string, keys RecordedKeys, wanted map[string][]string,
	l fencing.Limits,
) (map[string]*ParentTable, error) {
	names, tables := []string{"id"}, []string{}
	for _, name := range recorded {
		names = append(append(names, keys.Of[name].Columns...), wanted[name]...)
		for i := range name {
			if name[i] == '.' {
				tables = append(tables, name[i+1:]) // a dot may be part of either name
			}
		}
	}
	find := pg.NewQuery("find parent tables", parentTablesSQL, recorded, names, keys.OnlyID, tables)
	rows, err := pg.ReadRows(ctx, d.db, l, find, pgx.RowToStructByPos[parentRow])
	relations := map[string]map[catalog.Table][]parentRow{}
	for _, r := range rows {
		if relations[r.Recorded] == nil {
			relations[r.Recorded] = map[catalog.Table][]parentRow{}
		}
		t := catalog.Table{Schema: r.Schema, Name: r.Name}
		relations[r.Recorded][t] = append(relations[r.Recorded][t], r)
	}
	found := map[string]*ParentTable{}
	for name, places := range relations {
		p := &ParentTable{}
		for table, columns := range places {
			p.add(table, columns, keys.Of[name].Columns, wanted[name])
		}
		found[name] = p
	}
	return found, err
}

// add adds a relation. Its key is what a trigger records. Without such a trigger the key is the one
// column that definitions refer to. Else it is id or the primary key, if no other key can have been
// recorded. Only a trigger shows the order in which several columns were recorded.
func (p *ParentTable) add(t catalog.Table, rows []parentRow, recorded, wanted []string) {
	byName, primary := map[string]parentRow{}, []string{}
	for _, r := range rows {
		byName[r.Column] = r
		if r.Primary {
			primary = append(primary, r.Column)
		}
	}
	choices := [][]string{recorded}
	if len(recorded) == 0 {
		choices = append(choices, wanted)
		if rows[0].Keys <= 1 {
			choices = append(choices, []string{"id"}, primary)
		}
	}
	for i, names := range choices {
		columns := []parentColumn{}
		for _, name := range names {
			if r, ok := byName[name]; ok {
				columns = append(columns, parentColumn{name, r.Compared})
			}
		}
		if len(names) == len(columns) && (len(names) == 1 || len(names) > 1 && i == 0) {
			p.tables = append(p.tables, parentRelation{t.SQL(), columns, rows[0].Versioned, rows[0].Partitioned})
			return
		}
	}
	p.Unknown = true
}

// columns returns the number of columns of the key, 0 if unknown.
func (p *ParentTable) columns() (n int) {
	for _, t := range p.tables {
		if p.Unknown || n > 0 && n != len(t.columns) {
			return 0
		}
		n = len(t.columns)
	}
	return n
}

// Takes reports whether a row of the table can have the key, so that a query can look it up.
func (p *ParentTable) Takes(k Key) bool {
	n := p.columns()
	return n > 0 && n == k.Columns()
}

// matched returns the lists of the keys' values, their names k1, k2 … and the condition on the
// relation's rows t. list returns the SQL of the values for a column of the recorded key.
func (r parentRelation) matched(list func(i int, compared string) string) (lists, names, matches string) {
	var all, named, equal []string
	for i, c := range r.columns {
		name := fmt.Sprintf("k%d", i+1)
		all, named = append(all, list(i, c.compared)), append(named, name)
		equal = append(equal, "t."+stmt.Quote(c.name)+" = k."+name)
	}
	return strings.Join(all, ", "), strings.Join(named, ", "), strings.Join(equal, " AND ")
}

// livingPartSQL returns the numbers of the keys whose parents are alive. For keys of one column it
// reads the index once, which takes half the time of a lookup for each.
const livingPartSQL = `
  SELECT k.n FROM {parent} t
  JOIN unnest({lists}) WITH ORDINALITY AS k ({names}, n) ON {matches}
  WHERE t.{parent_column} = ANY ({lists}) AND NOT k.n = ANY ({approved}::bigint[])`

// livingSeveralSQL is livingPartSQL for keys of several columns. LIMIT 1: one lookup for each.
const livingSeveralSQL = `
  SELECT k.n FROM unnest({lists}) WITH ORDINALITY AS k ({names}, n)
  CROSS JOIN LATERAL (SELECT FROM {parent} t WHERE {matches} LIMIT 1) x
  WHERE NOT k.n = ANY ({approved}::bigint[])`

// livingSQL reports whether a key has a parent row, with a part for each relation. It runs after
// the change in the same transaction, with a new snapshot: it sees parents committed meanwhile.
const livingSQL = `EXISTS ({parts})`

// living returns livingSQL for some keys, "" if the parent has no table or is in another database.
func (c *Child) living(p Purge, args *stmt.Parameters) (string, error) {
	arrays, err := c.arguments(p.Keys)
	if err != nil || !c.parent.Exists() {
		return "", err
	}
	values := make([]string, len(arrays))
	for i, array := range arrays {
		values[i] = args.Add(array) + "::text[]"
	}
	approved := args.Add(p.approved())
	list := func(i int, compared string) string {
		if c.Order != nil {
			i = slices.Index(c.Order, i)
		}
		return values[i] + "::" + compared + "[]"
	}
	parts := make([]string, len(c.parent.tables))
	for i, r := range c.parent.tables {
		lists, names, matches := r.matched(list)
		part := livingPartSQL
		if len(r.columns) > 1 {
			part = livingSeveralSQL
		}
		parts[i] = stmt.Fill(part, "{lists}", lists, "{names}", names, "{parent}", r.sql,
			"{matches}", matches, "{parent_column}", stmt.Quote(r.columns[0].name), "{approved}", approved)
	}
	return stmt.Fill(livingSQL, "{parts}", strings.Join(parts, "\n  UNION ALL")), nil
}

// Claim is how a run handles a record.
type Claim int

const (
	// ClaimTrue means that no row has the key: its children are orphans.
	ClaimTrue Claim = iota
	// ClaimObsolete means that the parent row existed when the record was written, or that the same
	// transaction wrote it. The record stands for no deletion.
	ClaimObsolete
	// ClaimApproved means that the operator has released the children of a reused key.
	ClaimApproved
	// ClaimReused means that the parent row is newer than the record, or that their order is
	// unknown. The operator decides.
	ClaimReused
	// ClaimUnknown means that the columns of the recorded key are unknown. The operator decides.
	ClaimUnknown
)

// claimsSQL finds the living parents of records. The newest row of a key counts. Transaction ids
// are compared by their age. A record that was changed later has another xmin. It was postponed
// when its key had no row or could not be checked, so a row counts as newer. A missing record was
// closed by the operator. A failure that is older than the record belongs to an earlier record with
// the same id.
const claimsSQL = `
SELECT k.n, CASE
  WHEN q.id IS NULL THEN 1
  WHEN (
    SELECT x.sqlstate FROM {failures} x
    WHERE x.partition = k.partition AND x.record_id = k.id AND x.failed_at >= q.created_at
  ) = '` + reasons.KeyApproved + `' THEN 2
  WHEN p.row_age IS NULL THEN 3
  WHEN coalesce(q.cleanup_attempts, 0) > 0 OR q.consume_after <> q.created_at THEN 3
  WHEN p.row_age >= age(q.xmin) THEN 1
  ELSE 3 END
FROM unnest($1::bigint[], $2::text[]::{id}[], {lists}) WITH ORDINALITY AS k (partition, id, {names}, n)
CROSS JOIN LATERAL (
  SELECT {row_age} AS row_age FROM {parent} t WHERE {matches} ORDER BY 1 LIMIT 1
) p
LEFT JOIN {queue} q ON q.partition = k.partition AND q.id = k.id`

// approvedSQL finds the records whose children the operator has released.
const approvedSQL = `
SELECT r.n FROM unnest($1::bigint[], $2::text[]::{id}[]) WITH ORDINALITY AS r (partition, id, n)
JOIN {queue} q ON q.partition = r.partition AND q.id = r.id
JOIN {failures} x ON x.partition = r.partition AND x.record_id = r.id AND x.failed_at >= q.created_at
WHERE x.sqlstate = '` + reasons.KeyApproved + `'`

// Claims checks records against the rows of their parent's table. The result has an entry for each.
func (d Queue) Claims(
	ctx context.Context, q DeletedRecords, p *ParentTable, records []Record, l fencing.Limits,
) ([]Claim, error) {
	l.Before = lockTrees(p.trees())
	claims := make([]Claim, len(records))
	if !p.Exists() {
		return claims, nil
	}
	// 1. Group the records by queue, and by whether a row of the table can have their keys.
	known := make([]numberedRecords, len(QueueTables()))
	unknown := make([]numberedRecords, len(QueueTables()))
	for i, r := range records {
		if p.Takes(r.Key) {
			known[r.Queue].add(r, i)
		} else {
			claims[i] = ClaimUnknown
			unknown[r.Queue].add(r, i)
		}
	}
	// N is the position of a record in its group, from 1.
	type numbered struct{ N, Claim int }
	// 2. Check each group. Of the claims of several tables the strongest counts.
	for queue := range QueueTables() {
		var checks []pg.Query
		if some := known[queue].records; len(some) > 0 {
			for _, relation := range p.tables {
				checks = append(checks, relation.claims(q, queue, some))
			}
		}
		for _, check := range checks {
			found, err := pg.ReadRows(ctx, d.db, l, check, pgx.RowToStructByPos[numbered])
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				i := known[queue].places[f.N-1]
				claims[i] = max(claims[i], Claim(f.Claim))
			}
		}
		if some := unknown[queue].records; len(some) > 0 {
			find := pg.NewQuery("find approved records", q.Fill(queue, approvedSQL), recordArrays(some)...)
			approved, err := pg.ReadRows(ctx, d.db, l, find, pgx.RowTo[int])
			if err != nil {
				return nil, err
			}
			for _, n := range approved {
				claims[unknown[queue].places[n-1]] = ClaimApproved
			}
		}
	}
	return claims, nil
}

// numberedRecords contains some records of a list with their positions in it.
type numberedRecords struct {
	records []Record
	places  []int
}

// add adds a record with its position in the list.
func (n *numberedRecords) add(r Record, place int) {
	n.records, n.places = append(n.records, r), append(n.places, place)
}

// claims returns the statement that checks records of one table of the queue against the relation.
func (r parentRelation) claims(q DeletedRecords, queue int, records []Record) pg.Query {
	args := stmt.Parameters(recordArrays(records))
	lists, names, matches := r.matched(func(i int, compared string) string {
		values := make([]string, len(records))
		for n, record := range records {
			values[n] = record.Key.Values()[i]
		}
		return args.Add(values) + "::text[]::" + compared + "[]"
	})
	// A view or a foreign table has no xmin.
	age := "NULL::integer"
	if r.versioned {
		age = "age(t.xmin)"
	}
	return pg.NewQuery("check parents", stmt.Fill(q.Fill(queue, claimsSQL), "{parent}", r.sql,
		"{lists}", lists, "{names}", names, "{matches}", matches, "{row_age}", age), args...)
}
