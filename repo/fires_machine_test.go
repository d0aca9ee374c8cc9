package repo_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// fireMachine is a worker with a fire each minute, replicas that know its ledger as it was at some time,
// and what must have become of the fires.
type fireMachine struct {
	*bench
	worker string
	began  time.Time
	// accounted is up to which minute the ledger goes, rows are the outcomes of fires.
	accounted int
	rows      map[int]string
	known     map[string]repo.Ledger
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
	_, ledgers, err := m.Ledgers(context.Background(), []string{m.worker})
	if err != nil || !ledgers[m.worker].AccountedUntil.Equal(m.at(m.accounted)) {
		t.Fatalf("%+v, %v, want up to %s", ledgers, err, m.at(m.accounted))
	}
	m.known[m.replica(t)] = ledgers[m.worker]
}

// step is by how many minutes a replica moves the ledger that it knows; current says that nobody has
// moved that since.
func (m *fireMachine) step(replica string, minutes int) (s repo.LedgerStep, from int, current bool) {
	l, known := m.known[replica]
	if !known {
		return s, 0, false
	}
	from = int(l.AccountedUntil.Sub(m.began) / time.Minute)
	return repo.LedgerStep{Ledger: l, Cron: l.Cron, Until: m.at(from + minutes)}, from, from == m.accounted
}

func (m *fireMachine) claim(t *rapid.T) {
	replica := m.replica(t)
	step, from, current := m.step(replica, 1)
	if step.Cron == "" {
		return
	}
	id := fmt.Sprintf("%08d-0000-7000-8000-%012d", m.runs, time.Now().UnixNano()%1_000_000_000_000)
	run := repo.Run{ID: id, Worker: m.worker, State: repo.RunRunning, Replica: replica, Fire: step.Until}
	_, err := m.ClaimFire(context.Background(), repo.FireClaim{Step: step}, run, time.Hour, "")
	// One that was missed may run after all.
	free := current && m.rows[from+1] != repo.FireRan
	if free != (err == nil) || !free && !errors.Is(err, repo.ErrNotFound) {
		t.Fatalf("%s claims fire %d, which it may: %t: %v", replica, from+1, free, err)
	}
	if current {
		m.accounted = from + 1
	}
	if free {
		m.rows[from+1], m.runs = repo.FireRan, m.runs+1
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
			m.rows[n], fresh = repo.FireMissed, fresh+1
		}
	}
	moved, missed, err := m.MissFires(context.Background(), step, fires)
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
	fires, err := m.ListFires(context.Background(), repo.FireFilter{Worker: m.worker, Limit: 1000})
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
	t.Parallel()
	b, number := newBench(t, "main"), 0
	began := time.Now().UTC().Truncate(time.Minute).Add(-24 * time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		number++
		m := &fireMachine{bench: b, worker: fmt.Sprint("worker ", number), began: began, rows: map[int]string{}, known: map[string]repo.Ledger{}}
		servicetest.NoError(m.T, b.UseLedgers(context.Background(), []string{m.worker}, []string{"* * * * *"}, began))
		t.Repeat(map[string]func(*rapid.T){"read": m.read, "claim": m.claim, "miss": m.miss, "back": m.back, "": m.check})
	})
}
