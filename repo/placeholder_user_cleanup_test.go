package repo_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// deadlocked is a queue whose first insert ends its transaction, after something else has happened.
type deadlocked struct {
	repo.JobQueue
	meanwhile func()
	inserted  []repo.Job
}

func (q *deadlocked) InsertJobs(_ context.Context, _ repo.Tx, jobs []repo.Job) (int, error) {
	if q.meanwhile != nil {
		q.meanwhile()
		q.meanwhile = nil
		return 0, &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	}
	q.inserted = append(q.inserted, jobs...)
	return len(jobs), nil
}

func TestClaimPlaceholders_SecondTryClaimsNoMoreThanTheNextPageWasTold(t *testing.T) {
	t.Parallel()
	b := newBench(t, "main")
	ctx := t.Context()
	add := func(user int) {
		b.exec(`SET session_replication_role = replica`)
		b.exec(`INSERT INTO import_placeholder_user_details
			(placeholder_user_id, organization_id, created_at, updated_at) VALUES ($1, 1, now(), now())`, user)
	}
	add(7)
	add(8)
	d := b.Database
	tables := servicetest.Must(d.PlaceholderTables(ctx))(t)
	lease := servicetest.Must(d.AcquireLease(ctx, "placeholder_user_cleanup", "us", time.Minute))(t)
	now := time.Now()
	rules := repo.PlaceholderRules{MaxAttempts: 15, RetryPeriod: time.Hour, Now: now, Tables: tables}
	next := make(chan repo.PlaceholderPosition, 1)
	var at repo.PlaceholderPosition
	queue := &deadlocked{meanwhile: func() {
		// The page behind can begin while this one's jobs are inserted.
		at = <-next
		add(9)
	}}
	page := d.PlaceholderPage(ctx, rules, repo.BeforePlaceholders, 10, generous)
	claim, err := d.ClaimPlaceholders(ctx, by(lease.Fence), page, repo.PlaceholderJobs{
		Queue: queue, First: 5, Interval: time.Second, Next: next,
	})
	if err != nil || claim.Claimed != 2 || claim.Scheduled != 2 || at.First != 7 {
		t.Errorf("claimed %+v, the next page begins at %+v: %v", claim, at, err)
	}
	starts := []time.Duration{}
	for _, job := range queue.inserted {
		starts = append(starts, job.ScheduledAt.Sub(now))
	}
	if !slices.Equal(starts, []time.Duration{5 * time.Second, 6 * time.Second}) {
		t.Errorf("jobs start after %v", starts)
	}
	b.want(`SELECT string_agg(deletion_attempts::text, ' ' ORDER BY id) FROM import_placeholder_user_details`, "1 1 0")
}
