package lfk

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// Record is one deleted parent row, whose key is Key.
type Record struct {
	RecordID
	Key Key
}

// RecordID names a record.
type RecordID struct {
	// Queue is the index of the record's table among [QueueTables].
	Queue     int
	Partition int64
	// ID is the text of a bigint, or of a UUID in a routed queue.
	ID string
}

// Position is where loading goes on in each table of the queue: behind this record. The zero value is
// the beginning of the queue.
type Position struct{ places map[int]place }

// place is a position in one table.
type place struct {
	partition    int64
	id           string
	consumeAfter pgtype.Timestamptz
}

// loadRecordsSQL names the partition: without it the index's first column is unused. Records
// without a time are due, and come last. A record that no run has tried since then has the time at
// which it was recorded; who postpones one gives it a later one, so that it does not come back to
// the run that has done so, however soon it is due again. Keys are as keySQL has them.
const loadRecordsSQL = `
(SELECT partition, id::text AS record, {key_number} AS number, {key_values} AS key_values, consume_after FROM {queue}
 WHERE partition = $1 AND fully_qualified_table_name = $2 AND status = 1
   AND consume_after <= now() AND (consume_after, id) > ($3::timestamptz, $4::text::{id})
   AND (consume_after <= $7 OR $8 AND consume_after = created_at)
 ORDER BY consume_after, id LIMIT $6)
UNION ALL
(SELECT partition, id::text AS record, {key_number} AS number, {key_values} AS key_values, consume_after FROM {queue}
 WHERE partition = $1 AND fully_qualified_table_name = $2 AND status = 1
   AND consume_after IS NULL AND id > $5::text::{id}
 ORDER BY id LIMIT $6)
LIMIT $6`

// sameKeysSQL are the due records of some keys, among the oldest ones: tables have the records of one
// deletion in the same order. A bound keeps the cost of a large backlog linear. IS TRUE makes PostgreSQL
// hash the keys: on a queue without statistics it would join by a nested loop.
const sameKeysSQL = `
SELECT r.partition, r.id::text, r.number, r.key_values, r.consume_after FROM (
  SELECT partition, id, {key_number} AS number, {key_values} AS key_values, consume_after, created_at FROM {queue}
  WHERE partition = ANY ($1::bigint[]) AND fully_qualified_table_name = $2 AND status = 1 AND consume_after <= now()
  ORDER BY partition, fully_qualified_table_name, consume_after, id LIMIT $6
) r
WHERE (r.consume_after <= $3 OR $4 AND r.consume_after = r.created_at)
  AND (r.number IN (SELECT unnest($5::bigint[]))) IS TRUE`

// RecordPage says which records are wanted: up to Limit pending ones of Parent behind After that
// were due when the queue was read, and if Since those, too, that were recorded since and never
// tried.
type RecordPage struct {
	Parent string
	After  Position
	Limit  int
	Since  bool
	// Queues are the tables to read, by their index; none: the one that every trigger can write to.
	Queues []int
	// Together adds the due records of the same keys in the other tables, beyond the limit, so that
	// they end together. InHand are records that others work on, which are left out.
	Together bool
	InHand   []RecordID
}

// Page is what was loaded.
type Page struct {
	Records []Record
	// Full: the limit was reached, so there may be more.
	Full bool
	// After is the position behind it.
	After Position
}

// LoadRecords reads records: of each table in numeric order of the partitions, then by consume_after,
// then by id, and of several tables those first whose consume_after is the oldest.
func (d Queue) LoadRecords(
	ctx context.Context, q DeletedRecords, want RecordPage, l fencing.Limits,
) (page Page, err error) {
	if len(want.Queues) == 0 {
		want.Queues = []int{0}
	}
	loaded := make([][]queueRow, len(want.Queues))
	for i, queue := range want.Queues {
		if loaded[i], err = loadTable(ctx, d.db, q, queue, want, l); err != nil {
			return Page{After: want.After}, err
		}
	}
	page.After = Position{places: map[int]place{}}
	maps.Copy(page.After.places, want.After.places)
	next := make([]int, len(loaded))
	for len(page.Records) < want.Limit {
		oldest := -1
		for i, rows := range loaded {
			if next[i] < len(rows) && (oldest < 0 || rows[next[i]].before(loaded[oldest][next[oldest]])) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		r := loaded[oldest][next[oldest]]
		next[oldest]++
		page.Records = append(page.Records, r.record(want.Queues[oldest]))
		page.After.places[want.Queues[oldest]] = place{r.Partition, r.ID, r.ConsumeAfter}
	}
	page.Full = len(page.Records) == want.Limit
	if want.Together && len(want.Queues) > 1 && len(page.Records) > 0 {
		page.Records, err = addSameKeys(ctx, d.db, q, want, page.Records, l)
	}
	return page, err
}

// loadTable loads from one table.
func loadTable(
	ctx context.Context, d *pg.Database, q DeletedRecords, queue int, want RecordPage, l fencing.Limits,
) (all []queueRow, err error) {
	table, after := q.tables()[queue], want.After.places[queue]
	_, begun := want.After.places[queue]
	inHand := setOf(want.InHand, queue)
	for _, partition := range table.Partitions {
		if begun && partition < after.partition || len(all) >= want.Limit {
			continue
		}
		time, id, nullID := table.keyset(after, begun && partition == after.partition)
		load := pg.NewQuery("load records", q.Fill(queue, loadRecordsSQL), partition, want.Parent,
			time, id, nullID, want.Limit-len(all)+len(inHand), q.At, want.Since)
		rows, err := pg.ReadRows(ctx, d, l, load, pgx.RowToStructByPos[queueRow])
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if !inHand[r.record(queue).RecordID] && len(all) < want.Limit {
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// setOf are the records of one table.
func setOf(records []RecordID, queue int) map[RecordID]bool {
	set := map[RecordID]bool{}
	for _, r := range records {
		if r.Queue == queue {
			set[r] = true
		}
	}
	return set
}

// addSameKeys adds the records of the same keys, behind the others.
func addSameKeys(
	ctx context.Context, d *pg.Database, q DeletedRecords, want RecordPage, records []Record, l fencing.Limits,
) ([]Record, error) {
	var keys []int64
	taken := slices.Clone(want.InHand)
	for _, r := range records {
		taken = append(taken, r.RecordID)
		if n, ok := r.Key.Int(); ok {
			keys = append(keys, n)
		}
	}
	for _, queue := range want.Queues {
		known := setOf(taken, queue)
		find := pg.NewQuery("load records of the same keys", q.Fill(queue, sameKeysSQL),
			q.tables()[queue].Partitions, want.Parent, q.At, want.Since, keys, sameKeysAmong+len(known))
		rows, err := pg.ReadRows(ctx, d, l, find, pgx.RowToStructByPos[queueRow])
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if record := r.record(queue); !known[record.RecordID] {
				records = append(records, record)
			}
		}
	}
	return records, nil
}

// sameKeysAmong is among how many due records of a table those of the same keys are looked for.
const sameKeysAmong = 10_000

type queueRow struct {
	Partition int64
	ID        string
	RecordKey
	ConsumeAfter pgtype.Timestamptz
}

func (r queueRow) record(queue int) Record {
	return Record{RecordID{queue, r.Partition, r.ID}, r.Key()}
}

// before reports whether the record is older than one of another table. One without a time is the
// youngest.
func (r queueRow) before(other queueRow) bool {
	if !r.ConsumeAfter.Valid || !other.ConsumeAfter.Valid {
		return r.ConsumeAfter.Valid
	}
	return r.ConsumeAfter.Time.Before(other.ConsumeAfter.Time)
}

// Fill puts the table with the index into a statement, and what depends on it: the type of its ids, the
// table of their failures, and the number or the values of a record's key. Only a queue that is Wide has
// values: NULL for one integer, which is in primary_key_value then.
func (q *DeletedRecords) Fill(queue int, sql string) string {
	table := q.tables()[queue]
	number, values := "primary_key_value", "NULL::text[]"
	if q.Wide && !table.routed() {
		number = "CASE WHEN key_values IS NULL THEN primary_key_value END"
		values = "array_remove(key_values, NULL)"
	}
	id, failures, untraced, owner := "bigint", "maintenance.record_failures", untracedSQL, "NULL::bigint"
	if table.routed() {
		id, failures, untraced, owner = "uuid", "maintenance.routed_record_failures", "", table.Owner()
	}
	return stmt.Fill(sql, "{forget}", stmt.Fill(forgetSQL, "{failures}", failures)+untraced, "{queue}", table.SQL,
		"{key_number}", number, "{key_values}", values, "{id}", id, "{failures}", failures,
		"{owner}", owner, "{queue_name}", capture.Literal(table.Name))
}

// keyset is where to begin in a partition: behind (time, id) among the records with a time, behind
// nullID among those without.
func (t *QueueTable) keyset(p place, begun bool) (after pgtype.Timestamptz, id, nullID string) {
	first := t.firstID()
	switch {
	case !begun:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, first, first
	case p.consumeAfter.Valid:
		return p.consumeAfter, p.id, first
	}
	return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, first, p.id
}

// firstID is not above any id.
func (t *QueueTable) firstID() string {
	if t.routed() {
		return "00000000-0000-0000-0000-000000000000"
	}
	return strconv.FormatInt(-1<<63, 10)
}
