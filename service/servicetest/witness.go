package servicetest

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/service"
)

// Witness records from now on the rows of the application that main's statements change. It records
// the paths that deleted rows leave outside the database. [Estate.WantReceipts] and
// [Estate.WantOutside] read them.
func (e *Estate) Witness() {
	e.T.Helper()
	e.Exec("main", oracle.Witness)
}

// WantOutside fails the test unless exactly the paths are recorded, once, that the witness has
// seen, and so many at least.
func (e *Estate) WantOutside(least int) {
	e.T.Helper()
	const all = `SELECT string_agg(concat_ws(' ', kind, path), E'\n' ORDER BY kind, path) FROM `
	e.Want("main", all+`maintenance.outside_paths`, e.Value("main", all+`witness.left_outside`))
	e.Want("main", fmt.Sprintf(`SELECT count(*) >= %d FROM maintenance.outside_paths`, least), "true")
	e.Want("main", `SELECT count(*) FROM maintenance.outside_paths WHERE (run_id IS NULL) = (job_id IS NULL)`, "0")
}

// WantReceipts fails the test unless the receipts of main are a whole chain, and say what the witness
// has seen.
func (e *Estate) WantReceipts() {
	e.T.Helper()
	check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
	if err != nil || len(check.Findings) > 0 {
		e.T.Errorf("%+v, %v", check, err)
	}
	e.Want("main", oracle.Receipted, e.Value("main", oracle.Seen))
	e.Want("main", `SELECT count(*) FROM maintenance.receipts WHERE (run_id IS NULL) = (job_id IS NULL) OR worker = ''`, "0")
}

// receipts: what a run changes of the application has receipts of the run.
func (c *contract) receipts() {
	c.begin(3)
	c.e.Witness()
	r := c.run(c.service(nil, ""), false)
	c.e.WantReceipts()
	c.e.Want("main", fmt.Sprintf(`SELECT count(*) FROM maintenance.receipts
		WHERE (worker, run_id::text) IS DISTINCT FROM ('%s', '%s')`, c.Worker, r.ID), "0")
}
