package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
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

// DatabaseStates returns the states of databases, with their current figures.
func (s *Service) DatabaseStates(
	ctx context.Context, figures []status.DatabaseFigures,
) []DatabaseState {
	states, all := make([]DatabaseState, len(figures)), make([]*repo.Database, len(figures))
	for i, f := range figures {
		all[i] = s.Databases[slices.IndexFunc(s.Databases, func(d *repo.Database) bool { return d.Name == f.Name })]
	}
	run.EachDatabase(ctx, all, func(ctx context.Context, i int, d *repo.Database) {
		pool, state := d.PoolFigures()[0], &states[i]
		*state = DatabaseState{
			DatabaseFigures: figures[i], Problem: fault.PublicText(figures[i].Err), Used: pool.Used, Max: pool.Max,
		}
		if facts, err := d.ReplicaFacts(ctx); !errors.Is(err, repo.ErrNoReplica) {
			state.Replica, state.ReplicaLag, state.ReplicaProblem = true, facts.Late, fault.PublicText(err)
		}
	})
	return states
}
