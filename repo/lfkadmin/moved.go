package lfkadmin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
)

// strayFunctionsSQL are functions of another schema that insert into a queue which is not there any more.
// Triggers call them: ALTER TABLE SET SCHEMA takes no function along.
const strayFunctionsSQL = `
SELECT n.nspname, p.proname, EXISTS (
  SELECT FROM pg_proc o WHERE o.proname = p.proname AND o.pronamespace = $1::text::regnamespace AND o.pronargs = 0)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname <> $2 AND starts_with(p.proname, $3) AND p.pronargs = 0 AND NOT ` + insertsSQL + `
  AND ` + namedQueueSQL + ` IS NOT NULL AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid)
ORDER BY n.nspname, p.proname`

// strayFunction is a function that was left behind when the queue moved. Replaces: its name is taken in the
// queue's schema.
type strayFunction struct {
	Schema, Name string
	Replaces     bool
}

// strayFunctions are those of a queue of our own.
func strayFunctions(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) ([]strayFunction, error) {
	if !q.Managed {
		return nil, nil
	}
	return list(ctx, tx, pgx.RowToStructByPos[strayFunction], strayFunctionsSQL, quote(q.Schema), q.Schema,
		plainFunctionName)
}

const moveFunctionSQL = `ALTER FUNCTION {function}() SET SCHEMA {schema}`

// move moves the function to the queue. Its triggers, which know it by its OID, call it there.
func (f strayFunction) move(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) error {
	if f.Replaces {
		// It fails if a trigger calls that one, too.
		if err := run(ctx, tx, fill(dropFunctionSQL, "{function}", quote(q.Schema, f.Name)+"()")); err != nil {
			return err
		}
	}
	return run(ctx, tx, fill(moveFunctionSQL, "{function}", quote(f.Schema, f.Name), "{schema}", quote(q.Schema)))
}

// missingFunctions are the functions of no table that a queue of our own does not have.
func missingFunctions(
	ctx context.Context, tx pgx.Tx, q repo.DeletedRecords,
) (missing []captureFunction, err error) {
	for _, f := range []captureFunction{plainFunction(), overrideFunction(relation{})} {
		exists := !q.Managed
		if err == nil && !exists {
			exists, err = f.exists(ctx, tx, q)
		}
		if !exists {
			missing = append(missing, f)
		}
	}
	return missing, err
}

// leftBehindSQL: of the queue $1, whether caretaker has made it, its pending records up to 1000, and the
// tables whose triggers write into it.
const leftBehindSQL = `
SELECT EXISTS (SELECT FROM maintenance.queue_partitions),
  EXISTS (SELECT FROM maintenance.queue_home WHERE queue = $1::text::regclass),
  (SELECT count(*) FROM (SELECT FROM {queue} WHERE status = 1 LIMIT 1001) pending),
  ARRAY (
    SELECT DISTINCT t.tgrelid::regclass::text FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE to_regclass(` + namedQueueSQL + `) = $1::text::regclass AND t.tgparentid = 0
    ORDER BY 1)`

// checkLeftBehind refuses a queue in another schema while that which was worked has records, or gets new
// ones: no run would ever work them.
func (a Admin) checkLeftBehind(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords, was string) error {
	old := quote(was, q.Table().Name)
	var ours, known bool
	var pending int
	var tracked []string
	err := tx.QueryRow(ctx, fill(leftBehindSQL, "{queue}", old), old).Scan(&ours, &known, &pending, &tracked)
	if err != nil || !ours && !known || pending == 0 && len(tracked) == 0 {
		return err
	}
	records := fmt.Sprint(pending)
	if pending > 1000 {
		records = "more than 1,000"
	}
	advice := fmt.Sprintf("set search_path so that %s comes first", was)
	if ours && !q.Exists {
		advice = fmt.Sprintf("to move it, run ALTER TABLE %s SET SCHEMA %s, then `caretaker lfk install`; to "+
			"keep it there, %s", old, quote(q.Schema), advice)
	}
	return a.refuse("no run would clean the queue %s.%s any more, which has pending records: %s, and triggers on: "+
		"%s: %s", was, q.Table().Name, records, cmp.Or(strings.Join(tracked, ", "), "no table"), advice)
}
