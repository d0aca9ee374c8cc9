package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// LaggingSequence is a sequence whose next number a row already has, as after a restore of rows
// without their sequences: an insert fails with 23505.
type LaggingSequence struct {
	// Table with its schema. Sequence is quoted if necessary, as in a statement.
	Table, Sequence string
	// Highest number that is in use.
	Highest int64
	// OfQueue means that an application's deletion from a tracked table fails.
	OfQueue bool
}

// numberedSQL finds the columns that sequences number, in the tables of the schema maintenance and
// in the queue $1. A sequence that the role cannot read is left out.
const numberedSQL = `
SELECT n.nspname || '.' || c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
  quote_ident(a.attname), s.sequence, coalesce(c.oid = to_regclass($1), false)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
CROSS JOIN LATERAL pg_get_serial_sequence(quote_ident(n.nspname) || '.' || quote_ident(c.relname), a.attname)
  AS s (sequence)
WHERE (n.nspname = 'maintenance' OR c.oid = to_regclass($1)) AND c.relkind IN ('r', 'p')
  AND NOT c.relispartition AND s.sequence IS NOT NULL AND has_sequence_privilege(s.sequence, 'SELECT')
  AND has_table_privilege(c.oid, 'SELECT')
ORDER BY 1`

// highestSQL reads the highest number of a column if the sequence has not passed it. It reads one
// entry of the primary key's index.
const highestSQL = `
SELECT m.highest FROM {numbers} s
CROSS JOIN (SELECT max({numbered_column}) AS highest FROM {numbered_table} t{in_partition}) m
WHERE m.highest >= s.last_value + s.is_called::int`

// laggingSequences finds lagging sequences: of the queue, and of the tables of the schema
// maintenance.
func laggingSequences(
	ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords,
) (lagging []LaggingSequence, err error) {
	type numbered struct {
		Name, Table, Column, Sequence string
		OfQueue                       bool
	}
	columns, err := list(ctx, tx, pgx.RowToStructByPos[numbered], numberedSQL, quotedQueue(q))
	for _, c := range columns {
		if err != nil {
			break
		}
		active := ""
		if c.OfQueue {
			// Numbers are unique in a partition.
			active = fmt.Sprintf(" WHERE t.partition = %d", q.Active)
		}
		var highest []int64
		highest, err = list(ctx, tx, pgx.RowTo[int64], fill(highestSQL, "{numbers}", c.Sequence,
			"{numbered_column}", c.Column, "{numbered_table}", c.Table, "{in_partition}", active))
		for _, n := range highest {
			lagging = append(lagging, LaggingSequence{c.Name, c.Sequence, n, c.OfQueue})
		}
	}
	return lagging, err
}

// Repair returns the statement that continues the sequence after the highest number.
func (s LaggingSequence) Repair() string {
	return fmt.Sprintf("SELECT setval(%s, %d)", capture.Literal(s.Sequence), s.Highest)
}
