package repo_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caretaker-go/caretaker/repo"
)

// leaseMachine is one lease, and what must be true of it.
type leaseMachine struct {
	*bench
	name string
	// epoch is how often it was taken; held says that the last one who took it has it still.
	epoch int64
	held  bool
	// taken are all who have ever had it, the newest last.
	taken []repo.Fence
}

func (m *leaseMachine) acquire(t *rapid.T) {
	holder := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "holder")
	lease, err := m.AcquireLease(context.Background(), m.name, holder, time.Hour)
	if m.held {
		held, ok := errors.AsType[*repo.LeaseHeldError](err)
		if !ok || held.Lease.Fence != m.taken[len(m.taken)-1] {
			t.Fatalf("%+v, %v: it is held by %+v", lease, err, m.taken[len(m.taken)-1])
		}
		return
	}
	want := repo.Fence{Name: m.name, Holder: holder, Epoch: m.epoch + 1}
	if err != nil || lease.Fence != want {
		t.Fatalf("%+v, %v, want %+v", lease.Fence, err, want)
	}
	m.epoch, m.held, m.taken = want.Epoch, true, append(m.taken, want)
}

// some is one who has had it, and whether that one has it now.
func (m *leaseMachine) some(t *rapid.T) (f repo.Fence, has bool) {
	if len(m.taken) == 0 {
		return repo.Fence{Name: m.name, Holder: "a", Epoch: 1}, false
	}
	n := rapid.IntRange(0, len(m.taken)-1).Draw(t, "who")
	return m.taken[n], m.held && n == len(m.taken)-1
}

func (m *leaseMachine) renew(t *rapid.T) {
	f, has := m.some(t)
	_, err := m.RenewLease(context.Background(), f, time.Hour)
	if has != (err == nil) || !has && !errors.Is(err, repo.ErrLeaseLost) {
		t.Fatalf("%+v, who has it: %t, renews it: %v", f, has, err)
	}
}

func (m *leaseMachine) write(t *rapid.T) {
	f, has := m.some(t)
	_, err := m.DropTokenPass(context.Background(), by(f))
	if has != (err == nil) || !has && !errors.Is(err, repo.ErrLeaseLost) {
		t.Fatalf("%+v, who has it: %t, writes: %v", f, has, err)
	}
}

func (m *leaseMachine) release(t *rapid.T) {
	f, has := m.some(t)
	if err := m.ReleaseLease(context.Background(), f); err != nil {
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
	leases, err := m.ListLeases(context.Background(), []string{m.name})
	if err != nil || len(leases) != min(1, len(m.taken)) {
		t.Fatalf("%+v, %v", leases, err)
	}
	if len(leases) == 1 && (leases[0].Fence != m.taken[len(m.taken)-1] || leases[0].Expired == m.held) {
		t.Fatalf("%+v, want %+v, held: %t", leases[0], m.taken[len(m.taken)-1], m.held)
	}
}

func TestLease_WhateverIsDoneOneAtATimeHasItAndWrites(t *testing.T) {
	t.Parallel()
	b, number := newBench(t, "main"), 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		m := &leaseMachine{bench: b, name: fmt.Sprint("lease ", number)}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire, "renew": m.renew, "write": m.write, "release": m.release, "expire": m.expire, "": m.check,
		})
	})
}
