package inactivetoken

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// The backlog guard: a pass schedules no more deletions than there is room for in front of the
// ghost migration.

// roomAge is how old the room may be that a range is judged by; what the run itself has scheduled
// is always counted.
const roomAge = time.Second

// room is how many deletions may still be scheduled.
type room struct {
	left int
	at   time.Time
}

// roomFor looks how many of so many deletions may be scheduled now.
func (w *tokenWalk) roomFor(ctx context.Context, wanted int) (int, error) {
	if w.config.MaxQueued == 0 {
		return math.MaxInt, nil
	}
	if w.room.left < wanted || time.Since(w.room.at) > roomAge {
		waiting, err := w.x.Database.WaitingDeletions(ctx, w.features, w.config.MaxQueued, tokenLimits())
		if err != nil {
			return 0, err
		}
		// A dry run schedules in thought.
		if w.x.DryRun {
			waiting += w.scheduled
		}
		w.room = room{max(0, w.config.MaxQueued-waiting), time.Now()}
	}
	return w.room.left, nil
}

// next judges the next range, no larger than there is room for its deletions. full: there is no
// room for any.
func (w *tokenWalk) next(ctx context.Context) (r repo.BotRange, full bool, err error) {
	judge := func(limit int) (repo.BotRange, error) {
		return w.x.Database.InactiveBots(ctx, w.features, w.pass.TokenRules,
			repo.BotPage{After: w.pass.Cursor, Limit: limit}, tokenLimits())
	}
	r, err = judge(w.limit)
	if err != nil || len(r.Inactive) == 0 {
		return r, false, err
	}
	left, err := w.roomFor(ctx, len(r.Inactive))
	if err != nil || len(r.Inactive) <= left {
		return r, false, err
	}
	if left == 0 {
		return r, true, nil
	}
	// As many bots as there is room for are never too many, whatever they turn out to be.
	r, err = judge(left)
	return r, false, err
}

// stop ends the run before the next range, because the queue is full; the continuation goes on with
// the pass.
func (w *tokenWalk) stop(ctx context.Context) error {
	stay := repo.BotRange{Last: w.pass.Cursor, More: true}
	if _, err := w.settle(ctx, stay, true); err != nil {
		return err
	}
	why := fmt.Sprintf("%s: %d users wait for their deletion or more, workers.inactive_token_deletion.max_queued = %d",
		run.ReasonQueueFull, w.config.MaxQueued, w.config.MaxQueued)
	w.x.Limit(why, why)
	return nil
}

// roomShare is the part of max_queued that must be free before a full queue is gone on with: else
// each deletion would start a run of its own.
const roomShare = 10

// full says whether the continuation should wait for more room.
func (k *inactiveTokens) full(ctx context.Context) (bool, error) {
	if k.config.MaxQueued == 0 {
		return false, nil
	}
	features, err := k.schema.Look(ctx)
	if err != nil {
		return false, err
	}
	waiting, err := k.Main.WaitingDeletions(ctx, features, k.config.MaxQueued, tokenLimits())
	return waiting > k.config.MaxQueued-max(1, k.config.MaxQueued/roomShare), err
}
