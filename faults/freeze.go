package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// expireSQL lets the leases of a replica run out, and names them. It waits for a transaction of the
// replica that has checked one: the server ends that when it has been idle for two seconds.
const expireSQL = `
UPDATE maintenance.leases l SET expires_at = clock_timestamp() FROM faults.epochs e
WHERE e.name = l.name AND e.epoch = l.epoch AND e.app = $1 AND l.expires_at > clock_timestamp()
RETURNING l.name, l.epoch`

// holdsSQL counts the leases that a replica has.
const holdsSQL = `
SELECT count(*) FROM maintenance.leases l JOIN faults.epochs e USING (name, epoch)
WHERE e.app = $1 AND l.expires_at > clock_timestamp()`

// endSQL ends the transactions of a replica that wait for it.
const endSQL = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1 AND state LIKE 'idle in transaction%'`

// takeSQL takes a free lease for a moment, also under the name of the previous holder. Then only
// the epoch distinguishes the two.
const takeSQL = `
WITH taken AS (
  UPDATE maintenance.leases SET epoch = epoch + 1, holder = CASE WHEN $3 THEN holder ELSE 'faults' END, acquired_at = now(), renewed_at = now(),
    expires_at = clock_timestamp() + interval '100 ms'
  WHERE name = $1 AND epoch = $2 AND expires_at <= clock_timestamp() RETURNING name, epoch
)
INSERT INTO faults.epochs (name, epoch, app) SELECT name, epoch, 'faults' FROM taken`

// writesSQL reports whether a replica is in the middle of a transaction that has written.
const writesSQL = `
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND backend_xid IS NOT NULL)`

// againSQL makes jobs due at once. max_attempts moves along: 25 attempts are meant to last for weeks, here
// for minutes.
const againSQL = `
UPDATE maintenance.river_job j SET state = 'available', scheduled_at = now(), max_attempts = attempt + 25
`

// rescueSQL takes a replica's running jobs away, as River does when an attempt is too old.
const rescueSQL = againSQL + `
FROM faults.attempts a WHERE a.job_id = j.id AND a.app = $1 AND j.state = 'running'`

// expired is a lease that its holder has lost.
type expired struct {
	name  string
	epoch int64
}

// freezeHolder stops a replica with a lease again and again, and lets its leases expire. Mostly
// others take them before it wakes. An open transaction is ended by the server after two idle
// seconds or, to save time, nine times in ten by us.
func (r *round) freezeHolder(ctx context.Context, replica *replica, random *rand.Rand) {
	connections := connections{}
	defer connections.close(ctx)
	for ctx.Err() == nil {
		if r.calm.Load() {
			wait(ctx, 50*time.Millisecond)
			continue
		}
		// In between the replica gets something done: it is not to be frozen while it does nothing alone.
		wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
		lost, err := r.freezeOnce(ctx, replica, connections, howFrozen{
			writing: random.IntN(2) > 0, end: random.IntN(10) > 0, take: random.IntN(5) > 0, rescue: random.IntN(5) == 0,
		})
		if err != nil {
			connections.close(ctx)
		}
		if lost > 0 {
			r.tally.mu.Lock()
			r.tally.freezes++
			r.tally.mu.Unlock()
		}
	}
}

// connections are open ones, by database.
type connections map[string]*pgx.Conn

func (c connections) close(ctx context.Context) {
	for name, conn := range c {
		_ = conn.Close(context.WithoutCancel(ctx))
		delete(c, name)
	}
}

// howFrozen is when a replica is frozen, if it can be: in a transaction that has written. And what
// happens then: its transactions are ended, another holder has each of its leases before it wakes,
// and its jobs are given to others.
type howFrozen struct{ writing, end, take, rescue bool }

// freezeOnce freezes a replica that holds a lease until its leases have expired, and reports how
// many it lost.
func (r *round) freezeOnce(ctx context.Context, replica *replica, open connections, how howFrozen) (lost int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 6*time.Second)
	defer cancel()
	for _, name := range databases() {
		if open[name] == nil {
			if open[name], err = connect(ctx, r.lab.url(name)); err != nil {
				delete(open, name)
				return 0, err
			}
		}
	}
	if holds, err := untilItHolds(ctx, open, replica.name); !holds || err != nil {
		return 0, err
	}
	if how.writing {
		if err := untilItWrites(ctx, open, replica.name); err != nil {
			return 0, err
		}
	}
	if !replica.freeze() {
		return 0, nil
	}
	defer replica.thaw()
	for name, conn := range open {
		if how.end {
			if _, err := conn.Exec(ctx, endSQL, replica.name); err != nil {
				return lost, err
			}
		}
		n, oneErr := takeOver(ctx, conn, replica.name, how.rescue && name == "main", how.take)
		lost, err = lost+n, errors.Join(err, oneErr)
	}
	return lost, err
}

// untilItHolds waits a moment for a replica to have a lease, in any database.
func untilItHolds(ctx context.Context, open connections, app string) (bool, error) {
	for range 30 {
		for _, conn := range open {
			var n int
			if err := conn.QueryRow(ctx, holdsSQL, app).Scan(&n); err != nil || n > 0 {
				return n > 0, err
			}
		}
		wait(ctx, 5*time.Millisecond)
	}
	return false, nil
}

// untilItWrites waits until a replica is in a transaction that has written, in any database. It
// does not wait for long, as the replica may have nothing to do.
func untilItWrites(ctx context.Context, open connections, app string) error {
	for range 30 {
		for _, conn := range open {
			var writes bool
			if err := conn.QueryRow(ctx, writesSQL, app).Scan(&writes); err != nil || writes {
				return err
			}
		}
	}
	return nil
}

// takeOver lets what the replica holds in a database run out, and reports how many leases that was.
func takeOver(ctx context.Context, conn *pgx.Conn, app string, jobs, take bool) (int, error) {
	rows, err := conn.Query(ctx, expireSQL, app)
	if err != nil {
		return 0, err
	}
	lost, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e expired, err error) {
		err = row.Scan(&e.name, &e.epoch)
		return e, err
	})
	if err != nil {
		return 0, err
	}
	if jobs {
		if _, err := conn.Exec(ctx, rescueSQL, app); err != nil {
			return 0, err
		}
	}
	if len(lost) == 0 || !take {
		return len(lost), nil
	}
	time.Sleep(20 * time.Millisecond) // in which another replica may take them
	for i, e := range lost {
		if _, err := conn.Exec(ctx, takeSQL, e.name, e.epoch, (e.epoch+int64(i))%2 == 0); err != nil {
			return 0, err
		}
	}
	return len(lost), nil
}
