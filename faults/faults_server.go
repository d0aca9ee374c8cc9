package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
)

// url is where a database is now.
func (l *lab) url(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.primary.URL(name)
}

// pauseReplay makes the standby lag.
func (r *round) pauseReplay(ctx context.Context) error {
	conn, err := connect(ctx, r.lab.standby.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `SELECT pg_wal_replay_pause()`); err != nil {
		return err
	}
	wait(ctx, r.upTo(3000))
	_, err = conn.Exec(ctx, `SELECT pg_wal_replay_resume()`)
	return err
}

// killServer ends the primary as a power failure would, and starts it again.
func (r *round) killServer(ctx context.Context) error {
	if err := errors.Join(r.lab.primary.Kill(), r.lab.primary.Stop(ctx)); err != nil {
		return err
	}
	wait(ctx, r.upTo(2000))
	return r.restart(ctx)
}

// restart starts the primary again, perhaps on another port.
func (r *round) restart(ctx context.Context) error {
	r.lab.mu.Lock()
	err := r.lab.start(ctx)
	r.lab.mu.Unlock()
	if err != nil {
		return err
	}
	return r.lead(r.lab.primary)
}

// lead makes all networks lead to a server.
func (r *round) lead(to *devdb.Cluster) error {
	for _, replica := range r.replicas {
		for name, network := range replica.network {
			if err := network.leadTo(to.URL(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// failOver kills the primary permanently, promotes its standby, and leads all replicas to it.
func (r *round) failOver(ctx context.Context) error {
	if err := errors.Join(r.lab.primary.Kill(), r.lab.primary.Stop(ctx)); err != nil {
		return err
	}
	conn, err := connect(ctx, r.lab.standby.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `SELECT pg_promote()`); err != nil {
		return err
	}
	r.lab.mu.Lock()
	r.lab.primary, r.lab.failedOver = r.lab.standby, true
	r.lab.mu.Unlock()
	return r.lead(r.lab.standby)
}

// fillDisk takes all that is free where the primary's data is, for a while. A server that did not
// survive that is started again.
func (r *round) fillDisk(ctx context.Context) error {
	name := filepath.Join(r.lab.dir, "ballast")
	ballast, err := os.Create(name)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for size := len(block); size > 0; {
		if _, err := ballast.Write(block[:size]); err != nil {
			size /= 2
		}
	}
	// Connections that others free meanwhile are taken too.
	for range 1 + r.random.IntN(20) {
		wait(ctx, 100*time.Millisecond)
		for {
			if _, err := ballast.Write(block[:4096]); err != nil {
				break
			}
		}
	}
	if err := errors.Join(ballast.Close(), os.Remove(name)); err != nil {
		return err
	}
	err = within(ctx, 5*time.Second, "PostgreSQL to go on", func(ctx context.Context) error {
		return r.lab.administer(ctx, `CREATE TEMPORARY TABLE written AS SELECT 1`)
	})
	if err == nil {
		return nil
	}
	_ = r.lab.primary.Kill()
	if err := r.lab.primary.Stop(ctx); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return r.restart(ctx)
}

// setClockBack sets the clock of the database back by up to 30 seconds, and later right again. No
// replica works meanwhile. All are frozen and their connections ended, as a process of the server
// continues with the old clock for up to a second.
func (r *round) setClockBack(ctx context.Context) error {
	if err := r.setClock(ctx, fmt.Sprintf("-%d", 1+r.random.IntN(30))); err != nil {
		return err
	}
	wait(ctx, r.upTo(5000))
	return r.setClock(ctx, "+0")
}

// setClock makes the clock of the database wrong by so many seconds.
func (r *round) setClock(ctx context.Context, by string) error {
	for _, replica := range r.replicas {
		for !replica.freeze() {
			wait(ctx, time.Millisecond)
		}
	}
	defer func() {
		for _, replica := range r.replicas {
			replica.thaw()
		}
	}()
	if err := os.WriteFile(r.lab.clock, []byte(by+"\n"), 0o644); err != nil { //nolint:gosec // the server has another user
		return err
	}
	err := r.lab.administer(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	wait(ctx, 1500*time.Millisecond)
	return err
}
