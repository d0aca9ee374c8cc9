package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/status"
)

// DatabaseState is the state of a database as this server sees it.
type DatabaseState struct {
	Name string
	// Problem is why the database does not answer or accept writes, "" if it does.
	Problem string
	// Load is the load against each limit that is set. Without LoadKnown it cannot be read.
	Load      []load.Measure
	LoadKnown bool
	// Replica reports whether a read replica is configured. ReplicaProblem is why its lag is not
	// known.
	Replica        bool
	ReplicaLag     time.Duration
	ReplicaProblem string
	// Partitions is the number of partitions of the queue of deleted parents, -1 if not known.
	Partitions int
	// Used and Max are numbers of connections of this server to the primary.
	Used, Max int64
}

// replicaTimeout limits the reading of a replica's lag.
const replicaTimeout = 2 * time.Second

// DatabaseStates reads the states of all databases in parallel, in the order of the configuration.
func (s *Service) DatabaseStates(ctx context.Context) ([]DatabaseState, error) {
	w, err := s.Worker(lfk.Name)
	if err != nil {
		return nil, err
	}
	queues := s.ReadDatabases(ctx, w)
	states := make([]DatabaseState, len(s.Databases))
	var wait sync.WaitGroup
	for i, d := range s.Databases {
		wait.Go(func() { states[i] = s.databaseState(ctx, d, queues) })
	}
	wait.Wait()
	return states, nil
}

// databaseState reads the state of one database. queues has what is known of its queue.
func (s *Service) databaseState(
	ctx context.Context, d *repo.Database, queues []status.Database,
) DatabaseState {
	pool := d.PoolFigures()[0]
	state := DatabaseState{Name: d.Name, Partitions: -1, Used: pool.Used, Max: pool.Max}
	for _, q := range queues {
		if q.Name != d.Name {
			continue
		}
		state.Problem = fault.PublicText(q.Err)
		if q.Known {
			state.Partitions = q.Backlog.Partitions
		}
	}
	if state.Problem != "" {
		return state
	}
	state.Load, state.LoadKnown = s.Loads.Measures(ctx, d)
	ctx, cancel := context.WithTimeoutCause(ctx, replicaTimeout, dberr.ErrUnreachable)
	defer cancel()
	facts, err := d.ReplicaFacts(ctx)
	if errors.Is(err, repo.ErrNoReplica) {
		return state
	}
	state.Replica, state.ReplicaLag, state.ReplicaProblem = true, facts.Late, fault.PublicText(err)
	return state
}
