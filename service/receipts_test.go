package service_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestReceipts(t *testing.T) {
	inTurn(t, "", map[string]func(*servicetest.Estate){
		"VerifyReceipts_HeadsOfBeforeShowWhatWasCutOffOrWrittenAnew": verifyReceiptsHeadsOfBeforeShowWhatWasCutOffOrWrittenAnew,
		"ArePrunedWithTheHistory":                                    receiptsArePrunedWithTheHistory,
		"VerifyReceipts_ARestoredBackupIsSeenByTheHeadsOfAfterIt":    verifyReceiptsARestoredBackupIsSeenByTheHeadsOfAfterIt,
	})
}

// receipted is an estate with so many receipts, each of one row of t.
func receipted(e *servicetest.Estate, n int) *servicetest.Estate {
	e.T.Helper()
	e.Exec("main", fmt.Sprintf(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, %d)`, n))
	e.Open[0].KeepKeys = true
	for range n {
		assert.NoError(e.T, sweepRow(e.Open[0], "t", 1, aRun))
	}
	return e
}

func TestVerifyReceipts_FindsEveryTampering(t *testing.T) {
	e := receipted(servicetest.New(servicetest.Parallel(t), "", "main"), 9)
	e.Exec("main", copyReceipts)
	const insert = `INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash)
		SELECT %s, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash FROM maintenance.receipts WHERE sequence = 5`
	tampering := map[string]string{
		`SELECT 1`: "",
		`DELETE FROM maintenance.receipts WHERE sequence = 1`:             "receipt 1 is missing",
		`DELETE FROM maintenance.receipts WHERE sequence BETWEEN 3 AND 6`: "receipts 3 to 6 are missing",
		`DELETE FROM maintenance.receipts WHERE sequence > 7`:             "receipts 8 to 9 are missing at the end",
		`TRUNCATE maintenance.receipts`:                                   "receipts 1 to 9 are missing at the end",
		`DELETE FROM maintenance.receipt_head`:                            "the head is missing",
		`UPDATE maintenance.receipt_head SET sequence = 12`:               "receipts 10 to 12 are missing at the end",
		`UPDATE maintenance.receipt_head SET sequence = 8`:                "the head names receipt 8, but the last receipt is 9",
		`UPDATE maintenance.receipt_head SET hash = 'x'`:                  "the hash of the head",
		`UPDATE maintenance.receipt_head SET pruned_sequence = 2`:         "receipt 1 was inserted",
		`UPDATE maintenance.receipt_head SET pruned_hash = 'x'`:           "receipt 1 or the previous receipt was changed",
		fmt.Sprintf(insert, "10"):                                         "receipt 10 or the previous receipt was changed",
		fmt.Sprintf(insert, "0"):                                          "receipt 0 was inserted",
		fmt.Sprintf(insert, "-9223372036854775808"): "receipt -9223372036854775808 " +
			"was inserted before the first receipt 1",
		fmt.Sprintf(insert, "9223372036854775807"):                                "receipts 10 to 9223372036854775806 are missing",
		`UPDATE maintenance.receipts SET sequence = -sequence WHERE sequence = 4`: "receipt -4 was inserted",
		`UPDATE maintenance.receipts SET keys = '{7}' WHERE sequence = 4`:         "the keys of receipt 4",
		`UPDATE maintenance.receipts SET hash = 'x' WHERE sequence = 9`:           "receipt 9 or the previous receipt was changed",
		`WITH two AS (DELETE FROM maintenance.receipts WHERE sequence IN (3, 4) RETURNING *)
			SELECT count(*) FROM two`: "receipts 3 to 4 are missing",
		`UPDATE maintenance.receipts SET sequence = 70 - sequence WHERE sequence IN (3, 4);
			UPDATE maintenance.receipts SET sequence = sequence - 63 WHERE sequence > 60`: "receipt 3 or the previous receipt was changed",
		`UPDATE maintenance.receipt_head SET pruned_sequence = 20`:                                                     "receipt 1 was inserted before the first receipt 21",
		`UPDATE maintenance.receipt_head SET pruned_sequence = -5`:                                                     "receipts -4 to 0 are missing",
		`DELETE FROM maintenance.receipts WHERE sequence < 4; UPDATE maintenance.receipt_head SET pruned_sequence = 3`: "receipt 4 or the previous receipt was changed after it was written",
		`UPDATE maintenance.receipts SET sequence = sequence + 1 WHERE sequence = 9`:                                   "receipt 9 is missing",
		`UPDATE maintenance.receipts SET keys = '{9}', keys_digest = sha256('{9}') WHERE sequence = 3`:                 "receipt 3 or the previous receipt was changed after it was written",
		`UPDATE maintenance.receipts SET run_id = NULL, job_id = 5, requested_by = run_id WHERE sequence = 3`:          "receipt 3 or the previous receipt was changed after it was written",
		`UPDATE maintenance.receipts SET at = at AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Kathmandu' WHERE sequence = 3`:  "receipt 3 or the previous receipt was changed after it was written",
		`UPDATE maintenance.receipts SET lowest_key = highest_key || ',', highest_key = '' WHERE sequence = 3`:         "receipt 3 or the previous receipt was changed after it was written",
		`UPDATE maintenance.receipts SET hash = NULL`:                                                                  "receipt 1 or the previous receipt was changed after it was written",
		`INSERT INTO maintenance.receipts SELECT * FROM maintenance.receipts WHERE sequence = 3`:                       "receipt 3 was inserted",
	}
	for _, set := range []string{
		"at = at + interval '1 us'", "at = 'infinity'", "run_id = NULL", "job_id = 1", "worker = 'v'", `"table" = 'v'`,
		"action = 'updated'", "rule = ''", "worker = worker || action, action = ''", "rows = 2", "lowest_key = '3'",
		"highest_key = NULL", "keys_digest = 'x'", "keys = NULL", "requested_by = 'bob'",
	} {
		tampering["UPDATE maintenance.receipts SET "+set+" WHERE sequence = 4"] = "receipt 4 or the previous " +
			"receipt was changed"
	}
	// Without its constraints the table takes what a forger writes.
	e.Exec("main", `ALTER TABLE maintenance.receipts DROP CONSTRAINT receipts_pkey, ALTER hash DROP NOT NULL`)
	for sql, want := range tampering {
		e.Exec("main", sql)
		check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
		found := strings.Join(check.Findings, "\n")
		assert.That(t, err == nil && (want != "" || found == "") && strings.Contains(found, want),
			"%s: got %v, %v, want %q", sql, check, err, want)
		e.Exec("main", restoreReceipts)
	}
}

func verifyReceiptsHeadsOfBeforeShowWhatWasCutOffOrWrittenAnew(e *servicetest.Estate) {
	t := e.T
	receipted(e, 5)
	head := headOf(t, e.Open[0])
	assert.Require(t, head.Sequence == 5 && len(head.Hash) == 64, "%v", head)
	verify := func(want string, change func(*service.ReceiptHead)) {
		t.Helper()
		known := head
		change(&known)
		wantVerified(t, e.Open[0], want, known)
	}
	same := func(*service.ReceiptHead) {}
	second := func(h *service.ReceiptHead) { h.Sequence, h.Hash = 2, "ab" }
	verify("", same)
	verify("", func(h *service.ReceiptHead) { h.Database = "ci" })
	verify("receipt 5 differs from the given head, so the chain was rewritten",
		func(h *service.ReceiptHead) { h.Hash = strings.Repeat("0", 64) })
	// A checkpoint that fits is what pruning leaves, unless it came too early.
	e.Exec("main", copyReceipts)
	e.Exec("main", `UPDATE maintenance.receipt_head SET pruned_sequence = 5, pruned_hash = hash; DELETE FROM maintenance.receipts`)
	assert.Equal(t, head.Until.Location(), time.UTC, "time zone of a head")
	until := head.Until.Format(time.RFC3339)
	verify("receipt 5 of the given head was pruned before its retention period ended at "+until, same)
	verify("", func(h *service.ReceiptHead) { h.Until = time.Now().Add(-time.Second) })
	e.Exec("main", restoreReceipts)
	// An attacker who cuts off the end and sets the head back leaves a chain that is whole.
	e.Exec("main", `DELETE FROM maintenance.receipts WHERE sequence > 3;
		UPDATE maintenance.receipt_head SET sequence = 3, hash = (SELECT hash FROM maintenance.receipts WHERE sequence = 3)`)
	verify("", func(h *service.ReceiptHead) { *h = service.ReceiptHead{Database: "main"} })
	verify("receipt 5 of the given head is missing, because the chain was truncated after receipt 3", same)
	e.Exec("main", `UPDATE maintenance.receipt_head SET pruned_sequence = 3, pruned_hash = hash; DELETE FROM maintenance.receipts`)
	verify("the head of receipt 2 cannot be checked, because the receipt has expired", func(h *service.ReceiptHead) {
		*h = service.ReceiptHead{Database: "main", Sequence: 2, Hash: "ab"}
	})
	// Receipts to be kept longer were not pruned: an attacker has moved the checkpoint.
	verify("receipt 5 of the given head is missing, because the chain was truncated after receipt 3", same)
	verify("receipt 2 of the given head was pruned before its retention period ended at "+until, second)
	head.Until = time.Now().Add(-time.Second)
	verify("the head of receipt 2 cannot be checked, because the receipt has expired", second)
}

func receiptsArePrunedWithTheHistory(e *servicetest.Estate) {
	t := e.T
	receipted(e, 4)
	e.Exec("main", `UPDATE maintenance.receipts SET at = at - interval '2 days' WHERE sequence <= 2`)
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Receipts.Keep = 24 * time.Hour })
	servicetest.RunBatch(t, s, "main")
	e.Eventually("main", `SELECT string_agg(sequence::text, ',' ORDER BY sequence) FROM maintenance.receipts`, "3,4")
	// The hash of those that are gone is the earlier one: the remaining chain is whole.
	check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
	assert.That(t, err == nil && len(check.Findings) == 0 && check.Pruned == 2 && check.Receipts == 2, "%+v, %v", check, err)
}

var (
	aRun = fencing.Source{RunID: "0190a1b2-0000-7000-8000-000000000001", Worker: "w", RequestedBy: "alice"}
	aJob = fencing.Source{JobID: 7, Worker: "w", RequestedBy: "bob"}
)

// sweepRow deletes one row of an owner from t, which leaves a receipt.
func sweepRow(d *repo.Database, table string, owner int, source fencing.Source) error {
	c, err := d.Schema.Tables(context.Background(), map[string][]string{table: {"owner"}})
	if err != nil {
		return err
	}
	rows, _ := rowset.RowsOf(c, table, "owner", fmt.Sprint(owner))
	var attempt fencing.AttemptOf
	err = d.Jobs.Pool().QueryRow(context.Background(), `INSERT INTO maintenance.river_job (kind, args, state, attempt, attempted_at, max_attempts)
		VALUES ('k', '{}', 'running', 1, now(), 25) RETURNING id, attempted_at`).Scan(&attempt.ID, &attempt.AttemptedAt)
	if err != nil {
		return err
	}
	permit := fencing.Permit{
		Guard: attempt.Guard(), Limits: fencing.Limits{Statement: time.Minute, Lock: time.Minute}, Source: source,
	}
	_, err = rows.Sweep(context.Background(), rowset.Change{Delete: true}, rowset.Batch{Permit: permit, Rows: 1})
	return err
}

// wantVerified fails the test unless the verification of a database reports this, findings and what
// is unchecked, line by line.
func wantVerified(t *testing.T, d *repo.Database, want string, known ...service.ReceiptHead) {
	t.Helper()
	check, err := service.VerifyReceipts(context.Background(), d, known)
	got := strings.Join(append(check.Findings, check.Unchecked...), "\n")
	assert.That(t, err == nil && got == want, "%s: got %q, %v, want %q", d.Name, got, err, want)
}

func headOf(t *testing.T, d *repo.Database) service.ReceiptHead {
	t.Helper()
	return assert.Must(service.HeadOfReceipts(context.Background(), d, 24*time.Hour))(t)
}

const copyReceipts = `CREATE TABLE saved AS SELECT * FROM maintenance.receipts; CREATE TABLE saved_head AS SELECT * FROM maintenance.receipt_head`

const restoreReceipts = `TRUNCATE maintenance.receipts, maintenance.receipt_head; INSERT INTO maintenance.receipts SELECT * FROM saved; INSERT INTO maintenance.receipt_head SELECT * FROM saved_head`

func verifyReceiptsARestoredBackupIsSeenByTheHeadsOfAfterIt(e *servicetest.Estate) {
	t := e.T
	receipted(e, 5)
	d := e.Open[0]
	early := headOf(t, d)
	e.Exec("main", copyReceipts)
	e.Exec("main", `INSERT INTO t (owner) SELECT 1 FROM generate_series(1, 9)`)
	for range 2 {
		assert.NoError(t, sweepRow(d, "t", 1, aJob))
	}
	late := headOf(t, d)
	e.Exec("main", restoreReceipts)
	wantVerified(t, d, "", early)
	wantVerified(t, d, "receipt 7 of the given head is missing, because the chain was truncated after "+
		"receipt "+
		"5", late)
	for range 3 {
		assert.NoError(t, sweepRow(d, "t", 1, aJob))
	}
	wantVerified(t, d, "", early, headOf(t, d))
	wantVerified(t, d, "receipt 7 differs from the given head, so the chain was rewritten", early, late)
}

func TestVerifyReceipts_ChainsOfTwoDatabasesAreNotExchanged(t *testing.T) {
	one, other := receipted(servicetest.New(servicetest.Parallel(t), "", "main"), 4), receipted(servicetest.New(t, "", "main"), 4)
	first, second := headOf(t, one.Open[0]), headOf(t, other.Open[0])
	// The same work at another time: no receipt fits into the other chain.
	move := func(from, to *servicetest.Estate, where string) {
		t.Helper()
		rows := from.Value("main", `SELECT jsonb_agg(r ORDER BY sequence)::text FROM maintenance.receipts r WHERE `+where)
		to.Exec("main", `DELETE FROM maintenance.receipts WHERE `+where)
		to.Exec("main", `INSERT INTO maintenance.receipts SELECT * FROM jsonb_populate_recordset(NULL::maintenance.receipts, $1::text::jsonb)`, rows)
	}
	one.Exec("main", copyReceipts)
	move(other, one, "sequence = 2")
	wantVerified(t, one.Open[0], "receipt 2 or the previous receipt was changed after it was written\nreceipt 3 "+
		"or the previous receipt was changed after it was written")
	move(other, one, "true")
	wantVerified(t, one.Open[0], "the hash of the head differs from the hash of receipt 4")
	// With the head it is a chain. It is the heads kept elsewhere that say whose.
	one.Exec("main", `UPDATE maintenance.receipt_head SET hash = (SELECT hash FROM maintenance.receipts WHERE sequence = 4)`)
	wantVerified(t, one.Open[0], "", second)
	wantVerified(t, one.Open[0], "receipt 4 differs from the given head, so the chain was rewritten", first)
	one.Exec("main", restoreReceipts)
	wantVerified(t, one.Open[0], "", first)
}

// Two servers write as fast as they can, while receipts are pruned and verified. One keeps keys and
// has a clock that is set back.
func TestVerifyReceipts_IsRightWhileTheyAreWrittenAndPruned(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT i % 4 FROM generate_series(1, 400) i;
		CREATE TABLE refused (id bigserial PRIMARY KEY, owner bigint); INSERT INTO refused (owner) VALUES (9);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER refuse AFTER DELETE ON refused FOR EACH ROW EXECUTE FUNCTION refuse();
		CREATE SCHEMA deceit; CREATE FUNCTION deceit.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
		$$ SELECT pg_catalog.clock_timestamp() - random() * interval '1 day' $$`)
	back := servicetest.Open(t, e.URLs["main"]+"&search_path=public,deceit,pg_catalog")
	back.KeepKeys = true
	servers := []*repo.Database{e.Open[0], back}
	var writers sync.WaitGroup
	failed := make(chan error, 1000)
	for owner := range 4 {
		writers.Go(func() {
			for range 100 {
				failed <- sweepRow(servers[owner%2], "t", owner, aJob)
			}
			if err := sweepRow(servers[owner%2], "refused", 9, aJob); err == nil {
				failed <- fmt.Errorf("what a trigger refuses was deleted")
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(failed); close(ended) }()
	for n := 0; ; n++ {
		wantVerified(t, e.Open[0], "", headOf(t, e.Open[0]))
		if n%2 == 0 {
			_, err := e.Open[0].Receipts.PruneReceipts(t.Context(), 6*time.Hour)
			assert.That(t, err == nil, "%v", err)
		}
		select {
		case <-ended:
		default:
			continue
		}
		break
	}
	for err := range failed {
		assert.NoError(t, err)
	}
	check := assert.Must(service.VerifyReceipts(context.Background(), back, nil))(t)
	assert.That(t, len(check.Findings) == 0 && check.Sequence == 400 &&
		check.Receipts+check.Pruned == 400, "%+v", check)
	e.Want("main", `SELECT count(*) FROM refused`, "1")
	e.Want("main", `SELECT count(DISTINCT keys IS NULL) FROM maintenance.receipts`, "2")
}
