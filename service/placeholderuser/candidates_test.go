package placeholderuser_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestPlaceholderUserCleanup_DryRunNamesTheFirstThousandAndCountsTheRest(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 14, `now() - interval '3 days'`)
	e.Detail(2, 0, `NULL`)
	e.Exec("main", `INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, created_at, updated_at)
		SELECT i, 2, 0, 1, now(), now() FROM generate_series(3, 1005) i`)
	s := e.Service("", e.WithQueue)
	r := servicetest.RunPlaceholders(t, s, true)
	servicetest.WantCounts(t, r, "scheduled_jobs=2 exhausted_users=1")
	if len(r.Candidates) != 1000 || r.MoreCandidates != 5 {
		t.Errorf("%d candidates and %d more", len(r.Candidates), r.MoreCandidates)
	}
	r.Candidates = r.Candidates[:3]
	servicetest.WantCandidates(t, r,
		"placeholder 1 u1 queue the last attempt",
		"placeholder 2 u2 queue",
		"placeholder 2 u2 queue JOB_WAITING: a job for it waits already",
	)
	// The digest is that of all, also of those not listed.
	e.Exec("main", `DELETE FROM import_placeholder_user_details WHERE id = 1005`)
	if again := servicetest.RunPlaceholders(t, s, true); again.CandidatesDigest == r.CandidatesDigest {
		t.Error("one is gone, and the digest is the same")
	}
}

func TestPlaceholderUserCleanup_ARunHeldToAPlanClaimsNobodyElse(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for id := range 4 {
		e.Detail(id+1, 0, `NULL`)
	}
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 3`)
	e.Gate("main", "import_placeholder_user_details", "OLD.id = 1")
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 1 }))
	r := servicetest.RunPlanned(e, s, servicetest.PlaceholderUsers, func() {
		e.Detail(9, 0, `NULL`)
		e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = NULL WHERE id = 3`)
	})
	servicetest.WantCounts(t, r, "scheduled_jobs=3")
	e.Want("main", servicetest.JobsOfPlaceholders, "1 2 4")
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM import_placeholder_user_details WHERE deletion_attempts = 0`, "3 9")
}
