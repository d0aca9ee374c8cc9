package lfkadmin_test

import (
	"context"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
)

// TestValidate_TakesAsLongAsItNeeds: the role's own limit does not end it while it waits for a lock.
func TestValidate_TakesAsLongAsItNeeds(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p_id int);
		ALTER TABLE c ADD CONSTRAINT fk FOREIGN KEY (p_id) REFERENCES p NOT VALID`)
	b.exec(`BEGIN; LOCK TABLE c IN SHARE UPDATE EXCLUSIVE MODE`)
	patient := open(t, b.with("statement_timeout=300"))
	done := make(chan error, 1)
	go func() {
		done <- patient.Validate(context.Background(), lfkadmin.RealKey{Table: repo.Table{Schema: "public", Name: "c"}, Name: "fk"})
	}()
	watch := connect(t, b.url)
	devdb.Eventually(t, "the statement to wait for longer than the role's limit", func() (waits bool) {
		err := watch.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '400 ms'`).Scan(&waits)
		return waits || err != nil || len(done) > 0
	})
	b.exec(`COMMIT`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.want(`SELECT convalidated FROM pg_constraint WHERE conname = 'fk'`, "true")
}
