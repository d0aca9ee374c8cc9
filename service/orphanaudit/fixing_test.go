package orphanaudit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/orphanaudit"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// byHand is a search that writes records, of c, which refers to p by the keys 1 to n, none of which is there.
func byHand(t *testing.T, n int) (*servicetest.Estate, *orphanaudit.Search) {
	t.Helper()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
	e.Install("p")
	keys := e.Keys(servicetest.OneChild)
	fix := &orphanaudit.Fixing{Main: keys.Databases[0], Holder: "somebody"}
	return e, &orphanaudit.Search{
		Audit: orphanaudit.Audit{Databases: keys.Databases, Keys: keys.Definitions.Keys}, Limit: 1_000_000, Fix: fix,
	}
}

// searched runs a search until no other test's transactions keep it from writing.
func searched(t *testing.T, search *orphanaudit.Search) orphanaudit.Found {
	t.Helper()
	for {
		found, err := search.Run(t.Context())
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		if !strings.Contains(found[0].Fault, "older transactions are open") {
			return found[0]
		}
	}
}

// TestSearch_APauseHoldsItsWriting: the kill switch, and a pause of either worker.
func TestSearch_APauseHoldsItsWriting(t *testing.T) {
	t.Parallel()
	e, search := byHand(t, 3)
	s := e.Service(servicetest.OneChild)
	for _, worker := range []string{service.AllWorkers, orphanaudit.Name, servicetest.LooseForeignKeys} {
		if _, err := s.PauseWorker(t.Context(), worker, "incident", "alice", 0); err != nil {
			t.Fatal(err)
		}
		_, err := search.Run(t.Context())
		if _, paused := errors.AsType[*service.WorkerPausedError](err); !paused || !strings.Contains(err.Error(), "caretaker resume") {
			t.Errorf("%s: %v", worker, err)
		}
		if err := search.Fix.Permitted(t.Context(), search.Databases[0], func(repo.Permit) error { return nil }); err == nil {
			t.Errorf("%s: a record may be written", worker)
		}
		if _, err := s.ResumeWorker(t.Context(), worker, "alice"); err != nil {
			t.Fatal(err)
		}
	}
	e.WantQueue("main", "")
	if found := searched(t, search); found.Queued != 3 || found.Fault != "" {
		t.Errorf("%+v", found)
	}
}

// TestSearch_ALeaseThatRanOutIsTakenAgain: a look for orphans may find none for minutes.
func TestSearch_ALeaseThatRanOutIsTakenAgain(t *testing.T) {
	t.Parallel()
	e, search := byHand(t, 3)
	nothing := func(repo.Permit) error { return nil }
	if err := search.Fix.Permitted(t.Context(), search.Databases[0], nothing); err != nil {
		t.Fatal(err)
	}
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now() - interval '1 s'`)
	if found := searched(t, search); found.Queued != 3 || found.Fault != "" {
		t.Errorf("%+v", found)
	}
	e.WantQueue("main", "1 2 3")
}

// TestSearch_TooManyWaitingRecordsSayWhereToGoOn: they may be those that it has written itself.
func TestSearch_TooManyWaitingRecordsSayWhereToGoOn(t *testing.T) {
	t.Parallel()
	e, search := byHand(t, 2500)
	e.Deleted("main", "p", 10_001, 19_900)
	found := searched(t, search)
	if got := fmt.Sprint(found.Queued, found.After, found.AtLeast); got != "1000 [1000] true" ||
		!strings.Contains(found.Fault, "more than 10,000 waiting records") {
		t.Fatalf("%+v", found)
	}
	search.Fix.End(t.Context())
	// The worker keeps its place, and does not fail.
	r, err := e.Service(servicetest.OneChild, fixing(1000, 1000)).RunBatch(t.Context(), service.RunRequest{Worker: orphanaudit.Name})
	if err != nil || r.State != repo.RunSucceeded || !r.OverLimit || !strings.Contains(r.Reason, "more than 10,000 records") {
		t.Errorf("%+v, %v", r, err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.orphan_audits WHERE NOT done`, "1")
	e.Exec("main", `DELETE FROM c WHERE p_id <= 1000; DELETE FROM loose_foreign_keys_deleted_records`)
	search.After = repo.KeyOf(found.After...)
	if found := searched(t, search); found.Fault != "" || found.After != nil {
		t.Errorf("%+v", found)
	}
	e.Want("main", `SELECT min(primary_key_value) || ' ' || count(*) FROM loose_foreign_keys_deleted_records`, "1001 1500")
}

// TestTask_EveryHomeIsAskedAgainBeforeARecordIsWritten: a parent may have come into another home than the one with the queue.
func TestTask_EveryHomeIsAskedAgainBeforeARecordIsWritten(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "", "main", "ci", "sec")
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Install()
	for _, home := range []string{"main", "sec"} {
		e.Exec(home, `CREATE TABLE p (id bigint PRIMARY KEY)`)
		keys := e.Keys("")
		keys.Only = home
		if _, err := keys.Track(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
	}
	search := looking(e, servicetest.OneChild)
	tasks, err := search.Tasks(t.Context())
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%+v, %v", tasks, err)
	}
	page, err := tasks[0].Look(t.Context(), repo.Key{}, 10, 10)
	if err != nil || len(page.Orphans) != 2 {
		t.Fatalf("%+v, %v", page, err)
	}
	e.Exec("sec", `INSERT INTO p VALUES (1)`)
	fix := &orphanaudit.Fixing{Main: search.Databases[0], Holder: "somebody"}
	defer fix.End(context.WithoutCancel(t.Context()))
	for late := true; late; {
		_, late, err = tasks[0].Record(t.Context(), page, func(do func(repo.Permit) error) error {
			return fix.Permitted(t.Context(), tasks[0].Home(), do)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	e.WantQueue("main", "2")
}
