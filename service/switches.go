package service

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// SetFeatureFlag switches a flag; runs read it at their start.
func (s *Service) SetFeatureFlag(ctx context.Context, name string, enabled bool) error {
	if len(name) > 128 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || strings.TrimLeft(name, "0123456789_") != name || name == "" {
		return &InvalidArgumentError{"name", "lower-case letters, digits and underscores, beginning with a letter, at most 128"}
	}
	return s.main.SetFeatureFlag(ctx, name, enabled)
}

// FeatureFlags are the flags that caretaker knows, off unless set, and all others that have been set.
func (s *Service) FeatureFlags(ctx context.Context) (map[string]bool, error) {
	set, err := s.main.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range s.databases {
		if _, known := set[turboFlag(d.Name)]; !known {
			set[turboFlag(d.Name)] = false
		}
	}
	return set, nil
}

const (
	// historyKeep is how long runs and fires are kept.
	historyKeep = 30 * 24 * time.Hour
	// pruneInterval is how often a process looks for older ones, pruneRounds how many statements it then sends at most.
	pruneInterval = time.Hour
	pruneRounds   = 20
)

// prune deletes old history at the end of a run, whatever started it: nothing grows where the scheduler is off.
func (s *Service) prune(ctx context.Context) {
	s.mu.Lock()
	due := s.prunedAt.IsZero() || time.Since(s.prunedAt) > pruneInterval
	if due {
		s.prunedAt = time.Now()
	}
	s.mu.Unlock()
	for range pruneRounds {
		if !due || s.isStopping() {
			return
		}
		more, err := s.main.PruneHistory(ctx, historyKeep)
		if err != nil {
			s.logger.WarnContext(ctx, "history not pruned, next try in an hour", "error", err)
		}
		due = more
	}
}

func databaseNames(databases []*repo.Database) string {
	names := make([]string, len(databases))
	for i, d := range databases {
		names[i] = d.Name
	}
	return strings.Join(names, ", ")
}

// databaseLabel is Run.database: empty for workers that have no turn by database.
func databaseLabel(w *worker, d *repo.Database) string {
	if w.databases == nil {
		return ""
	}
	return d.Name
}

func addBacklogs(a, b repo.Backlog) repo.Backlog {
	sum := repo.Backlog{
		Pending: a.Pending + b.Pending, Due: a.Due + b.Due, Deferred: a.Deferred + b.Deferred,
		Dead: a.Dead + b.Dead, AtLeast: a.AtLeast || b.AtLeast, OldestAt: a.OldestAt,
	}
	if sum.OldestAt.IsZero() || (!b.OldestAt.IsZero() && b.OldestAt.Before(sum.OldestAt)) {
		sum.OldestAt = b.OldestAt
	}
	return sum
}

func sortLeases(leases []Lease) {
	slices.SortFunc(leases, func(a, b Lease) int { return cmp.Compare(a.Name, b.Name) })
}
