package repo_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// fireMachine is a worker with a fire each minute, and replicas that know an earlier state of its
// ledger. It has the expected outcome of each fire.
type fireMachine struct {
	*bench
	worker string
	began  time.Time
	// accounted is up to which minute the ledger goes, rows are the outcomes of fires.
	accounted int
	rows      map[int]string
	known     map[string]control.Ledger
	// runs is how many are on record.
	runs int
}

func (m *fireMachine) at(minute int) time.Time {
	return m.began.Add(time.Duration(minute) * time.Minute)
}

func (m *fireMachine) replica(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "replica")
}

func (m *fireMachine) read(t *rapid.T) {
	_, ledgers, err := m.Fires.Ledgers(context.Background(), []string{m.worker})
	if err != nil || !ledgers[m.worker].AccountedUntil.Equal(m.at(m.accounted)) {
		t.Fatalf("%+v, %v, want up to %s", ledgers, err, m.at(m.accounted))
	}
	m.known[m.replica(t)] = ledgers[m.worker]
}

// step is by how many minutes a replica moves the ledger that it knows. current reports that no
// replica has moved that since.
func (m *fireMachine) step(replica string, minutes int) (s control.LedgerStep, from int, current bool) {
	l, known := m.known[replica]
	if !known {
		return s, 0, false
	}
	from = int(l.AccountedUntil.Sub(m.began) / time.Minute)
	return control.LedgerStep{Ledger: l, Cron: l.Cron, Until: m.at(from + minutes)}, from, from == m.accounted
}

func (m *fireMachine) claim(t *rapid.T) {
	replica := m.replica(t)
	step, from, current := m.step(replica, 1)
	if step.Cron == "" {
		return
	}
	id := fmt.Sprintf("%08d-0000-7000-8000-%012d", m.runs, time.Now().UnixNano()%1_000_000_000_000)
	run := control.Run{ID: id, Worker: m.worker, State: control.RunRunning, Replica: replica, Fire: step.Until}
	_, err := m.Runs.ClaimFire(context.Background(), step, run, time.Hour, "")
	// One that was missed may run after all.
	free := current && m.rows[from+1] != control.FireRan
	if free != (err == nil) || !free && !errors.Is(err, dberr.ErrNotFound) {
		t.Fatalf("%s claims fire %d, which it may: %t: %v", replica, from+1, free, err)
	}
	if current {
		m.accounted = from + 1
	}
	if free {
		m.rows[from+1], m.runs = control.FireRan, m.runs+1
	}
}

func (m *fireMachine) miss(t *rapid.T) {
	replica, minutes := m.replica(t), rapid.IntRange(1, 4).Draw(t, "minutes")
	step, from, current := m.step(replica, minutes)
	if step.Cron == "" {
		return
	}
	var fires []time.Time
	fresh := 0
	for n := from + 1; n <= from+minutes; n++ {
		fires = append(fires, m.at(n))
		if current && m.rows[n] == "" {
			m.rows[n], fresh = control.FireMissed, fresh+1
		}
	}
	moved, missed, err := m.Fires.MissFires(context.Background(), step, fires)
	if err != nil || moved != current || missed != fresh {
		t.Fatalf("%s misses %d fires behind %d: moved %t, %d, %v; want %t, %d", replica, minutes, from, moved, missed, err, current, fresh)
	}
	if current {
		m.accounted = from + minutes
	}
}

// back is a ledger that begins again at an earlier time, as when a clock that was ahead is set back.
func (m *fireMachine) back(t *rapid.T) {
	m.accounted = rapid.IntRange(0, m.accounted).Draw(t, "minute")
	if _, err := m.sql.Exec(context.Background(), `UPDATE maintenance.schedules SET accounted_until = $2 WHERE worker = $1`,
		m.worker, m.at(m.accounted)); err != nil {
		t.Fatal(err)
	}
}

// check: every fire has the one outcome that it must have, and each that ran its one run.
func (m *fireMachine) check(t *rapid.T) {
	fires, err := m.Fires.ListFires(context.Background(), control.FireFilter{Worker: m.worker, Limit: 1000})
	if err != nil || len(fires) != len(m.rows) {
		t.Fatalf("%d fires, %v, want %d", len(fires), err, len(m.rows))
	}
	runs := map[string]bool{}
	for _, f := range fires {
		if minute := int(f.Time.Sub(m.began) / time.Minute); m.rows[minute] != f.Outcome {
			t.Fatalf("fire %d: %s, want %s", minute, f.Outcome, m.rows[minute])
		}
		if f.RunID != "" {
			runs[f.RunID] = true
		}
	}
	var recorded int
	err = m.sql.QueryRow(context.Background(), `SELECT count(*) FROM maintenance.runs WHERE worker = $1`, m.worker).Scan(&recorded)
	if err != nil || recorded != m.runs || len(runs) != m.runs {
		t.Fatalf("%d runs, of %d fires, %v, want %d", recorded, len(runs), err, m.runs)
	}
}

func TestFires_WhateverReplicasKnowEachFireRunsOnceOrIsMissed(t *testing.T) {
	b, number := newBench(servicetest.Parallel(t), "main"), 0
	began := time.Now().UTC().Truncate(time.Minute).Add(-24 * time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		number++
		m := &fireMachine{bench: b, worker: fmt.Sprint("worker ", number), began: began, rows: map[int]string{}, known: map[string]control.Ledger{}}
		assert.NoError(m.T, b.Fires.UseLedgers(context.Background(), []string{m.worker}, []string{"* * * * *"}, began))
		t.Repeat(map[string]func(*rapid.T){"read": m.read, "claim": m.claim, "miss": m.miss, "back": m.back, "": m.check})
	})
}

// leaseMachine is one lease, and what must be true of it.
type leaseMachine struct {
	*bench
	name string
	// epoch is how often it was taken. held reports that the last one who took it has it still.
	epoch int64
	held  bool
	// taken are all who have ever had it, the newest last.
	taken []fencing.Fence
}

func (m *leaseMachine) acquire(t *rapid.T) {
	holder := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "holder")
	lease, err := m.Leases.AcquireLease(context.Background(), m.name, holder, time.Hour)
	if m.held {
		held, ok := errors.AsType[*fencing.LeaseHeldError](err)
		if !ok || held.Lease.Fence != m.taken[len(m.taken)-1] {
			t.Fatalf("%+v, %v: it is held by %+v", lease, err, m.taken[len(m.taken)-1])
		}
		return
	}
	want := fencing.Fence{Name: m.name, Holder: holder, Epoch: m.epoch + 1}
	if err != nil || lease.Fence != want {
		t.Fatalf("%+v, %v, want %+v", lease.Fence, err, want)
	}
	m.epoch, m.held, m.taken = want.Epoch, true, append(m.taken, want)
}

// some is one who has had it, and whether that one has it now.
func (m *leaseMachine) some(t *rapid.T) (f fencing.Fence, has bool) {
	if len(m.taken) == 0 {
		return fencing.Fence{Name: m.name, Holder: "a", Epoch: 1}, false
	}
	n := rapid.IntRange(0, len(m.taken)-1).Draw(t, "who")
	return m.taken[n], m.held && n == len(m.taken)-1
}

func (m *leaseMachine) renew(t *rapid.T) {
	f, has := m.some(t)
	_, err := m.Leases.RenewLease(context.Background(), f, time.Hour)
	if has != (err == nil) || !has && !errors.Is(err, dberr.ErrLeaseLost) {
		t.Fatalf("%+v, who has it: %t, renews it: %v", f, has, err)
	}
}

func (m *leaseMachine) write(t *rapid.T) {
	f, has := m.some(t)
	_, err := m.Tokens.DropTokenPass(context.Background(), by(f))
	if has != (err == nil) || !has && !errors.Is(err, dberr.ErrLeaseLost) {
		t.Fatalf("%+v, who has it: %t, writes: %v", f, has, err)
	}
}

func (m *leaseMachine) release(t *rapid.T) {
	f, has := m.some(t)
	if err := m.Leases.ReleaseLease(context.Background(), f); err != nil {
		t.Fatal(err)
	}
	m.held = m.held && !has
}

// expire is time that passes.
func (m *leaseMachine) expire(t *rapid.T) {
	m.run(t, `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE name = $1`, m.name)
	m.held = false
}

func (m *leaseMachine) run(t *rapid.T, sql string, args ...any) {
	if _, err := m.sql.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// check: the row is there as soon as one has had the lease, and is of the last one.
func (m *leaseMachine) check(t *rapid.T) {
	leases, err := m.Leases.ListLeases(context.Background(), []string{m.name})
	if err != nil || len(leases) != min(1, len(m.taken)) {
		t.Fatalf("%+v, %v", leases, err)
	}
	if len(leases) == 1 && (leases[0].Fence != m.taken[len(m.taken)-1] || leases[0].Expired == m.held) {
		t.Fatalf("%+v, want %+v, held: %t", leases[0], m.taken[len(m.taken)-1], m.held)
	}
}

func TestLease_WhateverIsDoneOneAtATimeHasItAndWrites(t *testing.T) {
	b, number := newBench(servicetest.Parallel(t), "main"), 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		m := &leaseMachine{bench: b, name: fmt.Sprint("lease ", number)}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire, "renew": m.renew, "write": m.write, "release": m.release, "expire": m.expire, "": m.check,
		})
	})
}
