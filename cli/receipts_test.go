package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestReceipts_AreVerifiedByTheHeadsThatWerePrinted(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.want(1, "receipts verify", "run `caretaker migrate` first")
	sh.migrate()
	sh.want(0, "receipts verify", "main: 0 receipts, the last is 0: all as they were written\n")
	sh.want(0, "receipts head", "main 0 -\n")
	sh.want(0, "receipts verify -o json", `"findings": []`, `"unchecked": []`, `"moreFindings": 0`)
	execute(t, sql, `INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		VALUES (1, now(), 7, 'delete_user', 'members', 'deleted', 'delete user', 1, '', 'alice', 'x')`)
	sh.want(1, "receipts verify", "main: receipt 1 is not as it was written, or the one before it is not\n",
		"main: the head says 0, the last receipt is 1", "main: 1 receipt, the last is 1: NOT as they were written\n")
	sh.want(1, "receipts verify --output json", `"receipts": 1`, `"findings": [`, `"database": "main"`)
	sh.want(2, "receipts verify --database sec", `there is no database "sec" in the configuration`)
	for content, message := range map[string]string{
		"main 2 abcd\n":                      "",
		"":                                   "there is no head in it",
		"main 2":                             `"main 2" is not a database, a number and a hash`,
		"main x y":                           `"x" is no number`,
		"main 2 ab never":                    `"never" is no time`,
		"main 2 abcd\nold 2 abcd":            `database "old" is not in the configuration: set databases.old.url, or remove its heads from the file`,
		"main 2 abcd 2026-11-22T10:00:00Z\n": "",
		`{"heads": "main"}`:                  "cannot unmarshal",
		`{"heads": [{"database": "main", "sequence": 2, "hash": "abcd"}]}`: "",
	} {
		file := filepath.Join(t.TempDir(), "heads")
		assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		if message != "" {
			sh.want(2, "receipts verify --head "+file, message)
			continue
		}
		sh.want(1, "receipts verify --database all --head "+file, "receipt 2, of the head that was given, is missing: the end was cut off at 1")
	}
	sh.want(2, "receipts verify --head /nowhere", "/nowhere")
	execute(t, sql, `DELETE FROM maintenance.receipts`)
	file := filepath.Join(t.TempDir(), "heads")
	assert.NoError(t, os.WriteFile(file, []byte(sh.want(0, "receipts head")), 0o600))
	sh.want(0, "receipts verify --head "+file)
	assert.Contains(t, sh.want(0, "receipts head --output json"), `"sequence": 0`)
	sh.want(2, "receipts", "missing command: list, verify or head")
	sh.want(2, "receipts list --key 7", "--key needs --table")
	sh.want(2, "receipts list x", "unexpected argument")
}
