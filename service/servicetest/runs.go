package servicetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// LooseForeignKeys and the following are the names of the workers.
const LooseForeignKeys = "loose_foreign_keys_cleanup"

// AdjournedGroups is the worker of groups.
const AdjournedGroups = "adjourned_group_deletion"

// GhostUsers is the worker of deleted users.
const GhostUsers = "ghost_user_migration"

// InactiveTokens is the worker of bots.
const InactiveTokens = "inactive_token_deletion"

// PlaceholderUsers is the worker of placeholders.
const PlaceholderUsers = "placeholder_user_cleanup"

// RunBatch runs the worker on a database and fails the test on an error.
func RunBatch(t *testing.T, s *service.Service, database string) run.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: LooseForeignKeys, Database: database})
	if err != nil {
		t.Fatal(err)
	}
	WantSums(t, r)
	return r
}

// Begin starts a run and returns at once.
func Begin(t *testing.T, s *service.Service, database string) run.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: LooseForeignKeys, Database: database, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	WantState(t, r, control.RunRunning)
	return r
}

// Ended waits for the end of a run.
func Ended(t *testing.T, s *service.Service, id string) (r run.Run) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	err := s.WatchRun(ctx, id, func(run run.Run) error {
		r = run
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// DryRun is [RunBatch] on main for a dry run.
func DryRun(t *testing.T, s *service.Service) run.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: LooseForeignKeys, Database: "main", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// WantCounts fails the test unless the run's counts are these, "key=n key=n". Keys not named must
// be 0.
func WantCounts(t *testing.T, r run.Run, want string) {
	t.Helper()
	expected := map[string]string{}
	for pair := range strings.FieldsSeq(want) {
		key, n, _ := strings.Cut(pair, "=")
		expected[key] = n
	}
	for key, n := range r.Counts {
		w, named := expected[key]
		if !named {
			w = "0"
		}
		if fmt.Sprint(n) != w {
			t.Errorf("%s = %d, want %s", key, n, w)
		}
		delete(expected, key)
	}
	for key := range expected {
		t.Errorf("count %s is missing", key)
	}
}

// WantSums fails the test unless the run's tables add up to its counts.
func WantSums(t *testing.T, r run.Run) {
	t.Helper()
	var deleted, updated int64
	for _, table := range r.Tables {
		deleted, updated = deleted+table.Deleted, updated+table.Updated
	}
	if want := r.Counts["deleted_rows"]; deleted != want {
		t.Errorf("the tables have %d deleted rows, but deleted_rows is %d: %v", deleted, want, r.Tables)
	}
	if want := r.Counts["moved_rows"] + r.Counts["nullified_rows"] + r.Counts["updated_rows"]; updated != want {
		t.Errorf("the tables have %d updated rows, but the counts have %d: %v", updated, want, r.Tables)
	}
}

// WantState fails the test unless the run ended so.
func WantState(t *testing.T, r run.Run, state string) {
	t.Helper()
	if r.State != state {
		t.Fatalf("run is %s (reason %q, error %q), want %s", r.State, r.Reason, r.Error, state)
	}
}

// WantRun fails the test unless the run ended so, with these counts.
func WantRun(t *testing.T, r run.Run, state, counts string) {
	t.Helper()
	WantState(t, r, state)
	WantCounts(t, r, counts)
}

// WantFailed fails the test unless the run failed with exactly this error, which reports nothing
// that is not for clients.
func WantFailed(t *testing.T, r run.Run, text string) {
	t.Helper()
	WantState(t, r, control.RunFailed)
	if r.Error != text {
		t.Errorf("error %q, want %q", r.Error, text)
	}
}

// WantLost fails the test unless the run ended because its lease was lost.
func WantLost(t *testing.T, r run.Run) {
	t.Helper()
	WantState(t, r, control.RunFailed)
	if r.Reason != "LEASE_LOST" {
		t.Errorf("reason %q, error %q, want LEASE_LOST", r.Reason, r.Error)
	}
}

// WantEarly fails the test unless the run ended early for this reason.
func WantEarly(t *testing.T, r run.Run, reason string) {
	t.Helper()
	WantState(t, r, control.RunSucceeded)
	if !r.OverLimit || !strings.HasPrefix(r.Reason, reason) {
		t.Errorf("over_limit %t, reason %q, want %q", r.OverLimit, r.Reason, reason)
	}
}

// WantError fails the test unless there is an error with all these words.
func WantError(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want %q in it", err, w)
		}
	}
}
