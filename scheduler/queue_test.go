package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestQueue_JobIsInsertedWithTheTransactionOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	failed := errors.New("changed its mind")
	err := l.in(func(tx pgx.Tx) error {
		if n, err := l.InsertJobs(context.Background(), tx, []repo.Job{deleteUser(1)}); n != 1 || err != nil {
			t.Errorf("%d jobs inserted, %v", n, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	l.want(`SELECT count(*) FROM maintenance.river_job`, "0")
	l.insert(deleteUser(1))
	l.want(`SELECT count(*) FROM maintenance.river_job`, "1")
}

func TestQueue_JobIsWorkedAndItsOutcomeKept(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1))
	l.work(l.Queue, &jobs{do: func(context.Context, service.JobRequest) (service.JobResult, error) {
		return service.JobResult{Outcome: service.JobSkipped, Reason: "TARGET_GONE"}, nil
	}})
	l.until(`SELECT state || ' ' || (metadata ->> 'outcome') || ' ' || (metadata ->> 'reason') FROM maintenance.river_job`,
		"completed skipped TARGET_GONE")
}

func TestQueue_JobThatIsDueLaterIsNotWorked(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	later := deleteUser(1)
	later.ScheduledAt = time.Now().Add(time.Hour)
	l.insert(later, deleteUser(2))
	l.work(l.Queue, &jobs{})
	l.until(`SELECT string_agg(state::text, ',' ORDER BY args ->> 'user_id') FROM maintenance.river_job`, "scheduled,completed")
}
