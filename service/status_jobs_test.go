package service_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestStatus_FailedJobsAreCountedAnewUnlessTheyAreMany(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service("", e.WithQueue)
	shown := func(words string) bool {
		t.Helper()
		all := servicetest.Must(s.Status(t.Context(), servicetest.PlaceholderUsers))(t)
		return strings.Contains(all[0].ConditionDetail, words)
	}
	fail := func(jobs int) {
		t.Helper()
		e.Exec("main", `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, finalized_at)
			SELECT 'delete_placeholder_user', '{}', 25, 'discarded', now() FROM generate_series(1, $1::int)`, jobs)
	}
	fail(3)
	if !shown("were given up: 3 (") {
		t.Error("three failed jobs are not shown")
	}
	fail(997)
	if !shown("were given up: 1000 (") {
		t.Error("a thousand failed jobs are not shown, as soon as they are there")
	}
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	if !shown("were given up: 1000 (") {
		t.Error("a thousand failed jobs are counted again at once")
	}
}
