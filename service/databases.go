package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/status"
)

// DatabaseState is the state of a database as this server sees it.
type DatabaseState struct {
	status.DatabaseFigures
	// Problem is why the database does not answer or accept writes, "" if it does.
	Problem string
	// Replica reports whether a read replica is configured. ReplicaProblem is why its lag is not
	// known.
	Replica        bool
	ReplicaLag     time.Duration
	ReplicaProblem string
	// Used and Max are numbers of connections of this server to the primary.
	Used, Max int64
}

// replicaTimeout limits the reading of a replica's lag.
const replicaTimeout = 2 * time.Second

// DatabaseStates reads the states of all databases, in the order of the configuration.
func (s *Service) DatabaseStates(ctx context.Context) ([]DatabaseState, error) {
	all, err := s.DatabaseStatus(ctx)
	states := make([]DatabaseState, len(all))
	ctx, cancel := context.WithTimeoutCause(ctx, replicaTimeout, dberr.ErrUnreachable)
	defer cancel()
	var wait sync.WaitGroup
	for i, d := range s.Databases[:len(all)] {
		pool, state := d.PoolFigures()[0], &states[i]
		*state = DatabaseState{
			DatabaseFigures: all[i], Problem: fault.PublicText(all[i].Err), Used: pool.Used, Max: pool.Max,
		}
		wait.Go(func() {
			facts, err := d.ReplicaFacts(ctx)
			if !errors.Is(err, repo.ErrNoReplica) {
				state.Replica, state.ReplicaLag, state.ReplicaProblem = true, facts.Late, fault.PublicText(err)
			}
		})
	}
	wait.Wait()
	return states, err
}
