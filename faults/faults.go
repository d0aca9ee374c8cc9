package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
)

// fault is something that happens to replicas, networks or servers. It returns when it is over.
type fault struct {
	name string
	// possible reports whether it can be caused now. nil means always.
	possible func(*round) bool
	cause    func(*round, context.Context) error
}

// faults returns all faults. The first one begins each round: later most records whose children are in another
// database are processed.
func faults() []fault {
	return []fault{
		{"a database is unreachable while a replica starts", nil, (*round).databaseAway},
		{"kill a replica", nil, (*round).kill},
		{"shut a replica down", nil, (*round).stopInOrder},
		{"freeze a replica for longer than its leases", nil, (*round).freezeLong},
		{"freeze a replica for longer than a renewal waits", nil, (*round).freezeRenewal},
		{"pause a worker", nil, (*round).pauseWorker},
		{"cut connections", nil, (*round).cut},
		{"slow network", nil, (*round).slow},
		{"stalled connections", nil, (*round).stall},
		{"cut after COMMIT was sent", nil, (*round).cutCommits},
		{"backends terminated", nil, (*round).terminate},
		{"lock timeouts", nil, (*round).lock},
		{"children of deleted parents locked", nil, (*round).lockChildren},
		{"lost configuration", nil, (*round).loseConfiguration},
		{"WAL replay paused on the standby", func(r *round) bool { return !r.lab.failedOver }, (*round).pauseReplay},
		{"PostgreSQL killed and started again", func(r *round) bool { return !r.lab.failedOver }, (*round).killServer},
		{"failover to the standby", func(r *round) bool { return !r.lab.failedOver }, (*round).failOver},
		{"full disk", func(r *round) bool { return r.lab.disk && !r.lab.failedOver }, (*round).fillDisk},
		{"database clock set back", func(r *round) bool { return r.lab.clock != "" && !r.lab.failedOver }, (*round).setClockBack},
	}
}

// errNoOccasion is of a fault that found nothing to befall, and is not counted.
var errNoOccasion = errors.New("there was no occasion")

// cause lets faults happen one after the other, in the order that the seed reports, until the time
// is over.
func (r *round) cause(ctx context.Context) error {
	order := faults()[:1]
	for ctx.Err() == nil {
		if len(order) == 0 {
			order = faults()
			r.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		f := order[0]
		order = order[1:]
		if f.possible != nil && !f.possible(r) || len(r.only) > 0 && !slices.Contains(r.only, f.name) {
			wait(ctx, time.Millisecond)
			continue
		}
		if !wait(ctx, time.Duration(r.random.IntN(1000))*time.Millisecond) {
			break
		}
		// One that has started is brought to its end: what was stopped goes on.
		switch err := f.cause(r, context.WithoutCancel(ctx)); {
		case err == nil:
			r.tally.count(f.name)
		case !errors.Is(err, errNoOccasion):
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// wait waits for so long. false means that the context has ended before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (r *round) some() *replica { return r.replicas[r.random.IntN(len(r.replicas))] }

func (r *round) network() *proxy { return r.some().network[databases()[r.random.IntN(3)]] }

// upTo is a time up to so many milliseconds.
func (r *round) upTo(milliseconds int) time.Duration {
	return time.Duration(1+r.random.IntN(milliseconds)) * time.Millisecond
}

// free lets the leases and jobs of a dead replica expire, as they would in time.
func (r *round) free(ctx context.Context, gone *replica) error {
	return within(ctx, devdb.WaitTimeout, "the leases of a replica that is gone", func(ctx context.Context) error {
		for _, name := range databases() {
			conn, err := connect(ctx, r.lab.url(name))
			if err != nil {
				return err
			}
			_, err = conn.Exec(ctx, expireSQL, gone.name)
			if err == nil && name == "main" {
				_, err = conn.Exec(ctx, rescueSQL, gone.name)
			}
			if err = errors.Join(err, conn.Close(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *round) kill(ctx context.Context) error {
	replica := r.some()
	replica.end(syscall.SIGKILL)
	wait(ctx, r.upTo(1000))
	if err := r.free(ctx, replica); err != nil {
		return err
	}
	return replica.start(ctx, true)
}

func (r *round) stopInOrder(ctx context.Context) error {
	replica := r.some()
	replica.end(syscall.SIGTERM)
	wait(ctx, r.upTo(500))
	return replica.start(ctx, true)
}

// freezeLong freezes a replica for 13 seconds. The leases of workers whose max_runtime is 2 s last
// for 2 s and run.LeaseMargin, which is shorter. The leases of the others last longer. freezeHolder
// alone lets them expire.
func (r *round) freezeLong(ctx context.Context) error {
	replica := r.some()
	for !replica.freeze() {
		wait(ctx, time.Millisecond)
	}
	wait(ctx, 13*time.Second)
	replica.thaw()
	return nil
}

// freezeRenewal freezes the replica that has the lease of the ghost migration, between two
// statements of a run that has been running for a while. It waits until the next renewal is late
// and the leases have expired. When the replica wakes, it first renews its leases, if possible.
func (r *round) freezeRenewal(ctx context.Context) error {
	conn, err := connect(ctx, r.lab.url("main"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	r.calm.Store(true)
	defer r.calm.Store(false)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); wait(ctx, 5*time.Millisecond) {
		for _, replica := range r.replicas {
			var migrates bool
			err := conn.QueryRow(ctx, `SELECT (`+holdsSQL+` AND l.name = $2 AND l.acquired_at < clock_timestamp() - interval '0.3 s') > 0`,
				replica.name, ghost.Name).Scan(&migrates)
			if err != nil {
				return err
			}
			if !migrates || !replica.freeze() {
				continue
			}
			// Not in a transaction: the server would end that, and the run fail before it renews.
			var inTransaction bool
			err = conn.QueryRow(ctx, inTransactionSQL, replica.name).Scan(&inTransaction)
			if !inTransaction && err == nil {
				wait(ctx, 11*time.Second) // a third of ghostRuntime and run.LeaseMargin, and a second
				_, err = conn.Exec(ctx, expireSQL, replica.name)
			}
			replica.thaw()
			if !inTransaction || err != nil {
				return err
			}
		}
	}
	return errNoOccasion
}

// inTransactionSQL reports whether a frozen replica is in the middle of a transaction. The server's
// work for it ends by itself.
const inTransactionSQL = `
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND state LIKE 'idle in transaction%')`

// pauseWorker pauses a worker for a while: after three seconds no lease of it may be taken.
func (r *round) pauseWorker(ctx context.Context) error {
	worker := workers()[r.random.IntN(5)]
	// A replica that is frozen after it has checked for a pause takes its lease later.
	r.calm.Store(true)
	defer r.calm.Store(false)
	call := func(what string, do func(context.Context, maintenancev1.MaintenanceServiceClient) error) error {
		return within(ctx, devdb.WaitTimeout, what, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return r.some().call(func(c maintenancev1.MaintenanceServiceClient) error { return do(ctx, c) })
		})
	}
	note := func(sql string) error {
		conn, err := connect(ctx, r.lab.url("main"))
		if err == nil {
			_, err = conn.Exec(ctx, sql, worker)
			err = errors.Join(err, conn.Close(ctx))
		}
		return err
	}
	err := call("the pause of "+worker, func(ctx context.Context, c maintenancev1.MaintenanceServiceClient) error {
		_, err := c.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "to see that it stops"})
		return err
	})
	if err := errors.Join(err, note(`INSERT INTO faults.paused (worker) VALUES ($1)`)); err != nil {
		return err
	}
	wait(ctx, 4*time.Second+r.upTo(2000))
	if err := note(`DELETE FROM faults.paused WHERE worker = $1`); err != nil {
		return err
	}
	return call("the end of the pause of "+worker, func(ctx context.Context, c maintenancev1.MaintenanceServiceClient) error {
		_, err := c.ResumeWorker(ctx, &maintenancev1.ResumeWorkerRequest{Worker: worker})
		return err
	})
}

func (r *round) cut(ctx context.Context) error {
	for range 10 {
		r.network().cut()
		wait(ctx, r.upTo(100))
	}
	return nil
}

// databaseAway takes ci or sec from all replicas for up to ten seconds, or for longer than leases last, and starts
// a replica meanwhile. The first time it is the one that no replica has seen yet. A run asks for seconds whether the database answers:
// it keeps its lease, or none would come to its first record.
func (r *round) databaseAway(ctx context.Context) error {
	name, replica := cmp.Or(r.neverSeen, databases()[1+r.random.IntN(2)]), r.some()
	r.neverSeen = ""
	r.calm.Store(true)
	defer r.calm.Store(false)
	replica.end(syscall.SIGTERM)
	for _, each := range r.replicas {
		each.network[name].away.Store(true)
		each.network[name].cut()
	}
	started := make(chan error, 1)
	go func() { started <- replica.start(ctx, true) }()
	away := 3 * time.Second
	if r.random.IntN(4) == 0 {
		away = 20 * time.Second
	}
	wait(ctx, away+r.upTo(7000))
	for _, each := range r.replicas {
		each.network[name].away.Store(false)
	}
	return <-started
}

func (r *round) slow(ctx context.Context) error {
	network := r.network()
	network.delay.Store(int64(r.upTo(100)))
	wait(ctx, r.upTo(3000))
	network.delay.Store(0)
	return nil
}

// stall keeps what is sent on open connections. Then it is passed on late, or lost.
func (r *round) stall(ctx context.Context) error {
	network := r.network()
	network.stalled.Store(true)
	wait(ctx, r.upTo(5000))
	if r.random.IntN(2) == 0 {
		network.cut()
	}
	network.stalled.Store(false)
	return nil
}

func (r *round) cutCommits(ctx context.Context) error {
	for range 10 {
		r.network().commits.Add(1)
		r.network().statements.Add(1)
		wait(ctx, r.upTo(100))
	}
	return nil
}

func (r *round) terminate(ctx context.Context) error {
	for range 1 + r.random.IntN(10) {
		err := r.lab.administer(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'replica%'`)
		if err != nil {
			return err
		}
		wait(ctx, r.upTo(300))
	}
	return nil
}

// loseConfiguration starts a replica again without its definitions.
func (r *round) loseConfiguration(ctx context.Context) error {
	replica := r.some()
	replica.end(syscall.SIGTERM)
	if err := replica.start(ctx, false); err != nil {
		return err
	}
	wait(ctx, r.upTo(3000))
	replica.end(syscall.SIGTERM)
	return replica.start(ctx, true)
}

// lateIssueSQL lets a user write an issue in project 1, which stays, also one who is about to go.
const lateIssueSQL = `
INSERT INTO issues (id, iid, title, author_id, project_id, namespace_id)
SELECT $1::bigint, $1::bigint, 'late', u.id, p.id, p.project_namespace_id FROM users u, projects p WHERE u.id = $2 AND u.user_type IN (0, 6) AND p.id = 1`

// claimsSQL make a record of a shelf that lives: the shelf is moved, or an old copy of it purged.
func claimsSQL() []string {
	return []string{
		`DELETE FROM shelves_copy WHERE id = $1`,
		`WITH moved AS (DELETE FROM shelves WHERE id = $1 AND NOT moved RETURNING id) INSERT INTO shelves SELECT id, true FROM moved`,
	}
}

// application lets users write issues, moves shelves, and changes rows in another order than caretaker does, so that deadlocks come about.
func (r *round) application(ctx context.Context) {
	late, shelf := oracle.FirstLate, 0
	random := rand.New(rand.NewPCG(r.seed, 3))
	r.repeat(ctx, 10*time.Millisecond, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		conn, err := open(ctx, r.lab.url("main"), "application")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		shelf++
		if _, err := conn.Exec(ctx, claimsSQL()[shelf%2], shelf); err != nil {
			return err
		}
		for range 20 {
			late++
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, lateIssueSQL, late, 1+random.IntN(r.estate.LastUser())); err != nil {
					return err
				}
				for _, change := range random.Perm(3) {
					sql := []string{
						`UPDATE notes SET note = 'seen' WHERE id = ANY ($1)`, `UPDATE issues SET title = 'seen' WHERE id = ANY ($1)`,
						`UPDATE users SET name = 'seen' WHERE id = ANY ($1)`,
					}[change]
					if _, err := tx.Exec(ctx, sql, []int{random.IntN(100), random.IntN(100), random.IntN(100)}); err != nil {
						return err
					}
				}
				return nil
			})
			if conn.IsClosed() {
				return err
			}
		}
		return nil
	})
}
