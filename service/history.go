package service

import (
	"context"
	"time"
)

const (
	// historyKeep is how long runs and fires are kept unless history.keep says otherwise.
	historyKeep = 30 * 24 * time.Hour
	// pruneInterval is how often a process looks for older ones, pruneRounds how many statements it then sends at most.
	pruneInterval = time.Hour
	pruneRounds   = 20
)

// pruneDue says, once an hour, that it is time to prune.
func (s *Service) pruneDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.prunedAt.IsZero() || time.Since(s.prunedAt) > pruneInterval
	if due {
		s.prunedAt = time.Now()
	}
	return due
}

// prune deletes old history at the end of a run, whatever started it, and when fires are looked at: nothing grows where
// the scheduler is off, or where no run ever starts.
func (s *Service) prune(ctx context.Context) {
	if !s.pruneDue() {
		return
	}
	for range pruneRounds {
		if s.isStopping() {
			return
		}
		more, err := s.main.PruneHistory(ctx, s.historyKeep)
		if err != nil {
			s.logger.WarnContext(ctx, "history not pruned, next try in an hour", "error", err)
		}
		if !more {
			return
		}
	}
}
