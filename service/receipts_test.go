package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// receipted is an estate with so many receipts, each of one row of t.
func receipted(t *testing.T, n int) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, "", "main")
	e.Exec("main", fmt.Sprintf(`CREATE TABLE t (id bigserial PRIMARY KEY, owner bigint); CREATE INDEX ON t (owner, id); INSERT INTO t (owner) SELECT 1 FROM generate_series(1, %d)`, n))
	e.Open[0].KeepKeys = true
	c := servicetest.Must(e.Open[0].Tables(context.Background(), map[string][]string{"t": {"owner"}}))(t)
	rows, _ := c.Rows("t", "owner", "1")
	permit := repo.Permit{
		Guard: repo.AdvisoryLock(1), Limits: repo.Limits{Statement: time.Minute, Lock: time.Minute},
		Source: repo.Source{RunID: "0190a1b2-0000-7000-8000-000000000001", Worker: "w", RequestedBy: "alice"},
	}
	for range n {
		servicetest.Must(rows.Sweep(context.Background(), repo.Change{Delete: true}, repo.Batch{Permit: permit, Rows: 1}))(t)
	}
	return e
}

func TestVerifyReceipts_FindsEveryTampering(t *testing.T) {
	t.Parallel()
	e := receipted(t, 9)
	e.Exec("main", copyReceipts)
	const insert = `INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash)
		SELECT %s, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash FROM maintenance.receipts WHERE sequence = 5`
	for sql, want := range map[string]string{
		`SELECT 1`: "",
		`DELETE FROM maintenance.receipts WHERE sequence = 1`:                                       "receipt 1 is missing",
		`DELETE FROM maintenance.receipts WHERE sequence BETWEEN 3 AND 6`:                           "receipts 3 to 6 are missing",
		`DELETE FROM maintenance.receipts WHERE sequence > 7`:                                       "receipts 8 to 9 are missing at the end",
		`TRUNCATE maintenance.receipts`:                                                             "receipts 1 to 9 are missing at the end",
		`DELETE FROM maintenance.receipt_head`:                                                      "the head is missing",
		`UPDATE maintenance.receipt_head SET sequence = 12`:                                         "receipts 10 to 12 are missing at the end",
		`UPDATE maintenance.receipt_head SET sequence = 8`:                                          "the head says 8, the last receipt is 9",
		`UPDATE maintenance.receipt_head SET hash = 'x'`:                                            "the hash of the head",
		`UPDATE maintenance.receipt_head SET pruned_sequence = 2`:                                   "receipt 1 was inserted",
		`UPDATE maintenance.receipt_head SET pruned_hash = 'x'`:                                     "receipt 1 is not as it was",
		fmt.Sprintf(insert, "10"):                                                                   "receipt 10 is not as it was",
		fmt.Sprintf(insert, "0"):                                                                    "receipt 0 was inserted",
		`UPDATE maintenance.receipts SET sequence = -sequence WHERE sequence = 4`:                   "receipt -4 was inserted",
		`UPDATE maintenance.receipts SET at = at + interval '1 us' WHERE sequence = 4`:              "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET at = 'infinity' WHERE sequence = 4`:                        "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET run_id = NULL WHERE sequence = 4`:                          "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET job_id = 1 WHERE sequence = 4`:                             "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET worker = 'v' WHERE sequence = 4`:                           "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET "table" = 'v' WHERE sequence = 4`:                          "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET action = 'updated' WHERE sequence = 4`:                     "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET rule = '' WHERE sequence = 4`:                              "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET worker = worker || action, action = '' WHERE sequence = 4`: "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET rows = 2 WHERE sequence = 4`:                               "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET lowest_key = '3' WHERE sequence = 4`:                       "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET highest_key = NULL WHERE sequence = 4`:                     "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET keys_digest = 'x' WHERE sequence = 4`:                      "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET keys = '{7}' WHERE sequence = 4`:                           "the keys of receipt 4",
		`UPDATE maintenance.receipts SET keys = NULL WHERE sequence = 4`:                            "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET requested_by = 'bob' WHERE sequence = 4`:                   "receipt 4 is not as it was",
		`UPDATE maintenance.receipts SET hash = 'x' WHERE sequence = 9`:                             "receipt 9 is not as it was",
		`WITH two AS (DELETE FROM maintenance.receipts WHERE sequence IN (3, 4) RETURNING *)
			SELECT count(*) FROM two`: "receipts 3 to 4 are missing",
		`UPDATE maintenance.receipts SET sequence = 70 - sequence WHERE sequence IN (3, 4);
			UPDATE maintenance.receipts SET sequence = sequence - 63 WHERE sequence > 60`: "receipt 3 is not as it was",
	} {
		e.Exec("main", sql)
		check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
		found := strings.Join(check.Findings, "\n")
		if err != nil || want == "" && found != "" || !strings.Contains(found, want) {
			t.Errorf("%s: got %v, %v, want %q", sql, check, err, want)
		}
		e.Exec("main", restoreReceipts)
	}
}

func TestVerifyReceipts_HeadsOfBeforeShowWhatWasCutOffOrWrittenAnew(t *testing.T) {
	t.Parallel()
	e := receipted(t, 5)
	head, err := service.HeadOfReceipts(context.Background(), e.Open[0], 24*time.Hour)
	if err != nil || head.Sequence != 5 || len(head.Hash) != 64 {
		t.Fatal(head, err)
	}
	verify := func(known service.ReceiptHead, want string) {
		t.Helper()
		check, err := service.VerifyReceipts(context.Background(), e.Open[0], []service.ReceiptHead{known})
		if got := strings.Join(append(check.Findings, check.Unchecked...), "\n"); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	verify(head, "")
	other := head
	other.Database = "ci"
	verify(other, "")
	other = head
	other.Hash = strings.Repeat("0", 64)
	verify(other, "receipt 5 is not that of the head that was given: the chain was written anew")
	// Whoever cuts off the end and sets the head back leaves a chain that is whole.
	e.Exec("main", `DELETE FROM maintenance.receipts WHERE sequence > 3;
		UPDATE maintenance.receipt_head SET sequence = 3, hash = (SELECT hash FROM maintenance.receipts WHERE sequence = 3)`)
	verify(service.ReceiptHead{Database: "main"}, "")
	verify(head, "receipt 5, of the head that was given, is missing: the end was cut off at 3")
	e.Exec("main", `UPDATE maintenance.receipt_head SET pruned_sequence = 3, pruned_hash = hash; DELETE FROM maintenance.receipts`)
	third := service.ReceiptHead{Database: "main", Sequence: 2, Hash: "ab"}
	verify(third, "receipt 2, of a head that was given, has been pruned since")
	// What was to be kept longer was not pruned: somebody has moved the checkpoint.
	verify(head, "receipt 5, of the head that was given, is missing: the end was cut off at 3")
	early := head
	early.Sequence, early.Hash = 2, "ab"
	verify(early, "receipt 2, of the head that was given, was to be kept until "+head.Until.Format(time.RFC3339)+", and has been pruned")
	early.Until = time.Now().Add(-time.Second)
	verify(early, "receipt 2, of a head that was given, has been pruned since")
}

func TestReceipts_ArePrunedWithTheHistory(t *testing.T) {
	t.Parallel()
	e := receipted(t, 4)
	e.Exec("main", `UPDATE maintenance.receipts SET at = at - interval '2 days' WHERE sequence <= 2`)
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Receipts.Keep = 24 * time.Hour })
	servicetest.RunBatch(t, s, "main")
	e.Eventually("main", `SELECT string_agg(sequence::text, ',' ORDER BY sequence) FROM maintenance.receipts`, "3,4")
	// The hash of those that are gone is that of before: the rest is whole.
	check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
	if err != nil || len(check.Findings) > 0 || check.Pruned != 2 || check.Receipts != 2 {
		t.Errorf("%+v, %v", check, err)
	}
}
