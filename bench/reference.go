package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// reference is the algorithm that caretaker replaces: 500 records at a time. For each definition it
// takes 1,000 rows at a time until none remain, first skipping locked rows, then waiting for them.
// Records are marked, not removed. Values stand in the statements, as they do there.
type reference struct {
	conn *pgx.Conn
	keys []lfk.Definition
}

const (
	referenceBatch = 500
	referenceRows  = 1000
)

// clean drains the pending records of one parent, whose definitions are r.keys.
func (r reference) clean(ctx context.Context) error {
	for {
		ids, keys, err := r.load(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, key := range r.keys {
			for _, lock := range []string{"FOR UPDATE SKIP LOCKED", ""} {
				if err := r.pass(ctx, key, keys, lock); err != nil {
					return err
				}
			}
		}
		mark := fmt.Sprintf(`UPDATE loose_foreign_keys_deleted_records SET status = 2 WHERE partition = 1 AND id IN (%s)`, literals(ids))
		if _, err := r.conn.Exec(ctx, mark, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
}

func (r reference) load(ctx context.Context) (ids, keys []int64, err error) {
	rows, err := r.conn.Query(ctx, fmt.Sprintf(`
		SELECT id, primary_key_value FROM loose_foreign_keys_deleted_records
		WHERE partition = 1 AND status = 1 AND fully_qualified_table_name = 'public.%s'
		ORDER BY consume_after, id LIMIT %d`, r.keys[0].Parent, referenceBatch), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, nil, err
	}
	type record struct{ ID, Key int64 }
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record])
	for _, r := range records {
		ids, keys = append(ids, r.ID), append(keys, r.Key)
	}
	return ids, keys, err
}

func (r reference) pass(ctx context.Context, key lfk.Definition, keys []int64, lock string) error {
	purge := fmt.Sprintf(`DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s WHERE %[2]s IN (%[3]s) LIMIT %[4]d %[5]s)`,
		key.Table, key.Columns[0], literals(keys), referenceRows, lock)
	for {
		done, err := r.conn.Exec(ctx, purge, pgx.QueryExecModeSimpleProtocol)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
	}
}

func literals(of []int64) string {
	texts := make([]string, len(of))
	for i, n := range of {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return strings.Join(texts, ",")
}
