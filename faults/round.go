package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/devdb/oracle"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// workers are the five of the pipeline.
func workers() []string {
	return []string{lfk.Name, token.Name, ghost.Name, group.Name, placeholder.Name}
}

func upper(name string) string { return strings.ToUpper(name) }

// round is an estate that replicas work on while faults befall them, until all is done.
type round struct {
	options
	seed     uint64
	estate   *oracle.Estate
	lab      *lab
	replicas []*replica
	// random is of the schedule of faults. Others that draw have sources of their own.
	random *rand.Rand
	tally  *tally
	// calm is whether leases are left to their holders for a while.
	calm atomic.Bool
	// neverSeen is the database that is away from the first start of the replicas until the first
	// fault ends. "" means none.
	neverSeen string
}

// tally counts what was done in a campaign.
type tally struct {
	mu     sync.Mutex
	faults map[string]int
	// watched are the rows on which a rule looked.
	watched map[string]int
	// freezes are those in which a lease of the frozen replica expired.
	freezes, rounds, rows, runs, jobs, fires, missed int
	// disturbed are the rows that were changed while faults happened.
	disturbed int
	// drained is how long the work took at most when all was healed.
	drained time.Duration
	missing []string
}

func newTally() *tally { return &tally{faults: map[string]int{}, watched: map[string]int{}} }

func (t *tally) count(fault string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[fault]++
}

// play does one round and returns what is wrong at its end.
func (o options) play(ctx context.Context, program string, seed uint64, t *tally) (violations []string, err error) {
	o.say("seed %d: making and filling the databases", seed)
	dir, err := os.MkdirTemp(o.dir, fmt.Sprintf("round-%d-", seed))
	if err != nil {
		return nil, err
	}
	// The server's user has to reach its data below.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // it holds nothing secret
		return nil, err
	}
	r := &round{options: o, seed: seed, estate: oracle.Generate(seed, o.size), random: rand.New(rand.NewPCG(seed, 1)), tally: t}
	if r.lab, err = openLab(ctx, dir, r.estate); err != nil {
		return nil, err
	}
	defer func() {
		for _, replica := range r.replicas {
			err = errors.Join(err, replica.close())
		}
		err = errors.Join(err, r.lab.close(ctx))
		if err == nil && len(violations) == 0 {
			err = os.RemoveAll(dir)
		}
	}()
	t.missing = r.lab.missing()
	if first := faults()[0].name; len(o.only) == 0 || slices.Contains(o.only, first) {
		r.neverSeen = databases()[1+r.random.IntN(2)]
	}
	for n := range o.replicas {
		replica, err := newReplica(ctx, r.lab, dir, program, n)
		if err != nil {
			return nil, err
		}
		r.replicas = append(r.replicas, replica)
		if r.neverSeen != "" {
			replica.network[r.neverSeen].away.Store(true)
		}
		if err := replica.start(ctx, true); err != nil {
			return nil, err
		}
	}
	return r.work(ctx)
}

// work lets the faults happen for a while, then heals all and waits for the end of the work.
func (r *round) work(ctx context.Context) ([]string, error) {
	var wait, disturbers sync.WaitGroup
	defer wait.Wait()
	working, stop := context.WithCancel(ctx)
	defer stop()
	disturbing, heal := context.WithTimeout(ctx, r.disturb)
	defer heal()
	for n, replica := range r.replicas {
		for i := range 4 {
			random := rand.New(rand.NewPCG(r.seed, uint64(10+4*n+i)))
			wait.Go(func() {
				for working.Err() == nil {
					replica.request(working, random)
				}
			})
		}
	}
	wait.Go(func() { r.repeat(working, 200*time.Millisecond, r.passTime) })
	disturbers.Go(func() { r.application(disturbing) })
	for n, replica := range r.replicas {
		random := rand.New(rand.NewPCG(r.seed, uint64(100+n)))
		disturbers.Go(func() { r.freezeHolder(disturbing, replica, random) })
	}
	r.say("seed %d: faults for %s", r.seed, r.disturb)
	err := r.cause(disturbing)
	disturbers.Wait()
	r.say("seed %d: all is healed, waiting until the work is done", r.seed)
	if err = errors.Join(err, r.heal(ctx)); err != nil {
		return nil, err
	}
	if n, err := r.changes(ctx); err == nil {
		r.tally.disturbed += n
	}
	if r.proving {
		if broken, err := r.check(ctx, false); len(broken) > 0 || err != nil {
			return broken, err
		}
	}
	healed := time.Now()
	left, err := r.drain(ctx)
	r.tally.drained = max(r.tally.drained, time.Since(healed))
	stop()
	wait.Wait()
	if err != nil {
		return nil, err
	}
	broken, err := r.check(ctx, true)
	for i := range left {
		left[i] = "left at the end: " + left[i]
	}
	return append(broken, left...), err
}

// repeat does something again and again, whatever becomes of it: databases may be away.
func (r *round) repeat(ctx context.Context, every time.Duration, do func(context.Context) error) {
	for {
		_ = do(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// passTime makes all due at once that waits for another try: records, users in the ghost queue and
// jobs. A replica whose clock is ahead has postponed some jobs by that clock. Attempts that began
// two minutes ago count, too. A replica whose clock is slow would rescue them much later.
func (r *round) passTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, name := range databases() {
		c, err := connect(ctx, r.lab.url(name))
		if err != nil {
			return err
		}
		for _, queue := range lfkrepo.QueueTables() {
			_, more := c.Exec(ctx, `UPDATE `+queue+` SET consume_after = now() WHERE status = 1 AND consume_after > now()`)
			err = errors.Join(err, more)
		}
		if name == "main" && err == nil {
			_, err = c.Exec(ctx, `UPDATE ghost_user_migrations SET consume_after = now() WHERE consume_after > now()`)
			_, more := c.Exec(ctx, againSQL+`WHERE state IN ('retryable', 'scheduled') OR state = 'available' AND scheduled_at > now()
				OR state = 'running' AND EXISTS (
					SELECT FROM faults.attempts a WHERE a.job_id = j.id AND a.begun_at < now() - interval '2 min')`)
			err = errors.Join(err, more)
		}
		if err := errors.Join(err, c.Close(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// heal ends all faults and starts what was killed.
func (r *round) heal(ctx context.Context) error {
	for _, replica := range r.replicas {
		for _, network := range replica.network {
			network.heal()
		}
		replica.mu.Lock()
		gone := replica.process == nil
		replica.mu.Unlock()
		if gone {
			if err := replica.start(ctx, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain waits until nothing differs from the model for three seconds. It gives up, and returns what
// differs, when no row of main has been changed for `-timeout`, or after ten times `-timeout` in
// all.
func (r *round) drain(ctx context.Context) (differences []string, err error) {
	met, changed, last := time.Time{}, 0, time.Now().Add(10*r.timeout)
	for end := time.Now().Add(r.timeout); ; {
		differences, err = r.differences(ctx)
		switch {
		case len(differences) > 0 || err != nil:
			met = time.Time{}
		case met.IsZero():
			met = time.Now()
		case time.Since(met) > 3*time.Second:
			return nil, nil
		}
		if n, err := r.changes(ctx); err == nil && n > changed {
			changed, end = n, time.Now().Add(r.timeout)
		}
		if now := time.Now(); now.After(end) || now.After(last) {
			return differences, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}
