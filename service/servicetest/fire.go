package servicetest

import (
	"context"
	"errors"
	"strings"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// EveryMinute is the schedule that [Estate.Fire] needs. Only loose_foreign_keys_cleanup has it by default.
const EveryMinute = "* * * * *"

// Earlier fires of the worker get out of the way, and the ledger begins just before this minute.
const (
	shiftFiresSQL = `UPDATE maintenance.fires SET fire_time = fire_time - interval '1 hour' WHERE worker = $1`
	openLedgerSQL = `INSERT INTO maintenance.schedules (worker, cron, accounted_until, in_use_since, used_at)
		SELECT $1, '` + EveryMinute + `', t, t, t FROM (SELECT date_trunc('minute', clock_timestamp()) - interval '1 s') AS m (t)
		ON CONFLICT (worker) DO UPDATE SET accounted_until = excluded.accounted_until`
	firedSQL = `SELECT run_id FROM maintenance.fires WHERE worker = $1 AND fire_time > clock_timestamp() - interval '30 minutes'
		AND outcome <> 'claimed' AND run_id IS NOT NULL ORDER BY fire_time LIMIT 1`
)

// Fire lets the schedule start a run of a worker, which must have the schedule [EveryMinute], and waits for its end.
func (e *Estate) Fire(s *service.Service, worker string) run.Run {
	e.T.Helper()
	// Shortly before the end of a minute, the service would start the next fire, too.
	e.Eventually("main", `SELECT extract(second FROM clock_timestamp()) BETWEEN 0 AND 50`, "true")
	e.Exec("main", shiftFiresSQL, worker)
	e.Exec("main", openLedgerSQL, worker)
	fired := strings.Replace(firedSQL, "$1", "'"+worker+"'", 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.RunDue(ctx) }()
	e.Eventually("main", `SELECT count(*) FROM (`+fired+`) AS f`, "1")
	// On a slow machine, RunDue waits for the next fire by now.
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		e.T.Fatal(err)
	}
	return Ended(e.T, s, e.Value("main", fired))
}
