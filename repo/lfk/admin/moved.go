package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// abandonedQueueSQL reads of the queue $1 whether caretaker has made it, its pending records up to
// 1001, and the tables whose triggers write into it.
const abandonedQueueSQL = `
SELECT EXISTS (SELECT FROM maintenance.queue_partitions),
  EXISTS (SELECT FROM maintenance.queue_home WHERE queue = $1::text::regclass),
  (SELECT count(*) FROM (SELECT FROM {queue} WHERE status = 1 LIMIT 1001) pending),
  ARRAY (
    SELECT DISTINCT t.tgrelid::regclass::text FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE to_regclass(` + namedQueueSQL + `) = $1::text::regclass AND t.tgparentid = 0
    ORDER BY 1)`

// checkAbandonedQueue refuses a queue in another schema while the previous queue has records or
// gets new ones: no run would ever process them. It counts up to 1,000 pending records exactly. The
// refusal names the tracked tables, and how to keep or move the queue.
func (a Admin) checkAbandonedQueue(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords, was string) error {
	old := quote(was, q.Table().Name)
	var ours, known bool
	var pending int
	var tracked []string
	err := tx.QueryRow(ctx, fill(abandonedQueueSQL, "{queue}", old), old).Scan(&ours, &known, &pending, &tracked)
	// A queue that caretaker never used does not matter, nor an empty one that no trigger writes
	// into.
	if err != nil || !ours && !known || pending == 0 && len(tracked) == 0 {
		return err
	}
	records := fmt.Sprint(pending)
	if pending > 1000 {
		records = "more than 1,000"
	}
	advice := fmt.Sprintf("put schema %s first in search_path", was)
	if ours && !q.Exists {
		advice = fmt.Sprintf("to move the queue, run ALTER TABLE %s SET SCHEMA %s, then run `caretaker lfk "+
			"install`. To keep the queue in its schema, %s", old, quote(q.Schema), advice)
	}
	return a.refuse("runs would no longer process the queue %s.%s (pending records: %s, tables with triggers: %s): %s",
		was, q.Table().Name, records, cmp.Or(strings.Join(tracked, ", "), "none"), advice)
}
