package service_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// scheduled lets the replicas look at the fires again and again, through whatever befalls main. The function that is
// returned ends that and fails the test unless fires are run again by themselves, every fire has come to its end, and
// every one that ran has its run.
func scheduled(e *servicetest.Estate, replicas ...*replica) (check func()) {
	e.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var looks sync.WaitGroup
	for _, r := range replicas {
		looks.Go(func() { checkOften(ctx, e, r) })
	}
	ended := sync.OnceFunc(func() {
		stop()
		looks.Wait()
	})
	e.T.Cleanup(ended)
	return func() {
		e.T.Helper()
		devdb.Eventually(e.T, "a fire to be run", func() bool {
			passMinute(e)
			return e.Value("main", `SELECT count(*) > 0 FROM maintenance.fires WHERE outcome = 'ran'`) == "true"
		})
		ended()
		e.T.Log(e.Value("main", `SELECT string_agg(concat_ws(' ', worker, outcome, reason, n), ', ') FROM
			(SELECT worker, outcome, left(reason, 12) AS reason, count(*) n FROM maintenance.fires GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) f`))
		e.Want("main", `SELECT count(*) FROM maintenance.fires f LEFT JOIN maintenance.runs r ON r.id = f.run_id AND r.worker = f.worker
			WHERE f.outcome = 'ran' AND (r.id IS NULL OR r.lease_epoch = 0)`, "0")
		e.Want("main", `SELECT count(*) FROM maintenance.runs r WHERE r.trigger = 'schedule'
			AND NOT EXISTS (SELECT FROM maintenance.fires f WHERE f.run_id = r.id)`, "0")
	}
}

// passMinute makes the fire of this minute due anew, for each worker whose last one has come to something.
func passMinute(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `WITH done AS (
			SELECT s.worker FROM maintenance.schedules s
			LEFT JOIN maintenance.fires c ON c.worker = s.worker AND c.fire_time > now() - interval '10 min'
			LEFT JOIN maintenance.runs r ON r.id = c.run_id
			WHERE s.cron = '* * * * *'
			GROUP BY s.worker HAVING coalesce(bool_and(r.id IS NULL OR r.state <> 'running' OR r.lease_epoch > 0), true)
		), shifted AS (
			UPDATE maintenance.fires c SET fire_time = c.fire_time - interval '1 h' - random() * interval '1 h' FROM done
			WHERE c.worker = done.worker AND c.fire_time > now() - interval '10 min'
		)
		UPDATE maintenance.schedules s SET accounted_until = date_trunc('minute', clock_timestamp()) - interval '1 s' FROM done WHERE done.worker = s.worker`)
}

// checkOften checks the fires, and closes the runs of the dead.
func checkOften(ctx context.Context, e *servicetest.Estate, r *replica) {
	for pace := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-pace.C {
		// One that waits for the next minute must not hold up the test.
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond) //nolint:gocritic // elapses: no wait for the next minute
		err := errors.Join(r.RunDue(bounded), r.ResumeRuns(ctx))
		cancel()
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, service.ErrUnreachable) {
			e.T.Logf("check: %v", err)
		}
	}
}
