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

// RecordID identifies a record.
type RecordID struct {
	// Queue is the index of the record's table among [QueueTables].
	Queue     int
	Partition int64
	// ID is the text of a bigint, or in a routed queue of a UUID.
	ID string
}

// Position has the last record that was loaded from each table of the queue: loading continues
// after it. The zero value is the beginning of the queue.
type Position struct{ places map[int]place }

// place is a position in one table.
type place struct {
	partition    int64
	id           string
	consumeAfter pgtype.Timestamptz
}

// loadRecordsSQL names the partition: otherwise the index's first column is unused. Records without
// a time are due and come last. A record that no run has tried has the time at which it was
// recorded. Postponing gives a record a later time, so that the same run does not load it again,
// however soon it is due. Keys are as keySQL has them.
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

// sameKeysSQL reads the due records of some keys, among the oldest ones: tables have the records of
// one deletion in the same order. The bound keeps the cost of a large backlog linear. IS TRUE makes
// PostgreSQL hash the keys: on a queue without statistics it would use a nested loop.
const sameKeysSQL = `
SELECT r.partition, r.id::text, r.number, r.key_values, r.consume_after FROM (
  SELECT partition, id, {key_number} AS number, {key_values} AS key_values, consume_after, created_at FROM {queue}
  WHERE partition = ANY ($1::bigint[]) AND fully_qualified_table_name = $2 AND status = 1 AND consume_after <= now()
  ORDER BY partition, fully_qualified_table_name, consume_after, id LIMIT $6
) r
WHERE (r.consume_after <= $3 OR $4 AND r.consume_after = r.created_at)
  AND (r.number IN (SELECT unnest($5::bigint[]))) IS TRUE`

// RecordPage selects up to Limit pending records of Parent after After that were due when the queue
// was read. With Since, it adds records that were recorded since then and never tried.
type RecordPage struct {
	Parent string
	After  Position
	Limit  int
	Since  bool
	// Queues are the tables to read, by index. None means the one that every trigger can write to.
	Queues []int
	// Together adds the due records of the same keys in the other tables, beyond the limit, so that
	// they end together. InHand lists records to leave out: others are processing them.
	Together bool
	InHand   []RecordID
}

// Page is the result of a load.
type Page struct {
	Records []Record
	// Full means that the limit was reached, so there may be more.
	Full bool
	// After is the position after the last record.
	After Position
}

// LoadRecords reads records of each table in numeric order of the partitions, then by
// consume_after, then by id. Of several tables it reads the records with the oldest consume_after
// first.
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
	_, started := want.After.places[queue]
	inHand := setOf(want.InHand, queue)
	for _, partition := range table.Partitions {
		if started && partition < after.partition || len(all) >= want.Limit {
			continue
		}
		time, id, nullID := table.keyset(after, started && partition == after.partition)
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

// setOf returns the set of the records of one table.
func setOf(records []RecordID, queue int) map[RecordID]bool {
	set := map[RecordID]bool{}
	for _, r := range records {
		if r.Queue == queue {
			set[r] = true
		}
	}
	return set
}

// addSameKeys appends the records of the same keys.
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
		find := pg.NewQuery("load records with the same keys", q.Fill(queue, sameKeysSQL),
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

// sameKeysAmong bounds the due records of a table that are searched for the same keys.
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

// before reports whether the record is older than one of another table. A record without a time is
// the youngest.
func (r queueRow) before(other queueRow) bool {
	if !r.ConsumeAfter.Valid || !other.ConsumeAfter.Valid {
		return r.ConsumeAfter.Valid
	}
	return r.ConsumeAfter.Time.Before(other.ConsumeAfter.Time)
}

// Fill puts the table with the index into a statement. The type of ids, the table of failures, and
// the number or values of a record's key depend on the table. Only a Wide queue has values. They
// are NULL for one integer, which is in primary_key_value.
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

// keyset returns where to begin in a partition: after (time, id) among the records with a time,
// after nullID among those without.
func (t *QueueTable) keyset(p place, started bool) (after pgtype.Timestamptz, id, nullID string) {
	first := t.firstID()
	switch {
	case !started:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, first, first
	case p.consumeAfter.Valid:
		return p.consumeAfter, p.id, first
	}
	return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, first, p.id
}

// firstID returns an id that is not above any other.
func (t *QueueTable) firstID() string {
	if t.routed() {
		return "00000000-0000-0000-0000-000000000000"
	}
	return strconv.FormatInt(-1<<63, 10)
}
