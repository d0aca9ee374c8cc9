package token

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// A pass schedules no more deletions than the ghost migration's queue has room for.

// roomAge is how long a count of the waiting deletions is used, minus those that the run itself
// schedules meanwhile.
const roomAge = time.Second

// room is how many deletions may still be scheduled, by the last count.
type room struct {
	left int
	at   time.Time
}

// roomFor returns how many of the wanted deletions have room now, with a new count if required.
func (w *tokenWalk) roomFor(ctx context.Context, wanted int) (int, error) {
	if w.config.MaxQueued == 0 {
		return math.MaxInt, nil
	}
	if w.room.left < wanted || time.Since(w.room.at) > roomAge {
		waiting, err := w.waitingDeletions(ctx, w.features)
		if err != nil {
			return 0, err
		}
		if w.x.DryRun {
			// The run has queued none of its scheduled deletions yet.
			waiting += w.scheduled
		}
		w.room = room{max(0, w.config.MaxQueued-waiting), time.Now()}
	}
	return w.room.left, nil
}

// waitingDeletions counts the users who wait for their deletion, up to max_queued of each kind.
func (k *inactiveTokens) waitingDeletions(
	ctx context.Context, features gitlab.UserFeatures,
) (int, error) {
	return k.Main.Tokens.WaitingDeletions(ctx, features, k.config.MaxQueued, tokenLimits())
}

// next judges the next range, no larger than the room for its deletions. full means that no room is
// left.
func (w *tokenWalk) next(ctx context.Context) (r gitlab.BotRange, full bool, err error) {
	r, err = w.judge(ctx, w.limit)
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
	// There is room for this many bots, even if all of them are inactive.
	r, err = w.judge(ctx, left)
	return r, false, err
}

// judge returns the inactive, unprotected bots among the next limit bots after the cursor.
func (w *tokenWalk) judge(ctx context.Context, limit int) (r gitlab.BotRange, err error) {
	page := gitlab.BotPage{After: w.pass.Cursor, Limit: limit}
	r, err = w.x.Database.Tokens.InactiveBots(ctx, w.features, w.pass.TokenRules, page, tokenLimits())
	all := r
	r.Inactive, r.Organizations, w.protected = nil, nil, nil
	for i, bot := range all.Inactive {
		if p := w.kept.Of(control.KindUser, bot); p != nil {
			w.protected = append(w.protected, gitlab.Veto{Target: bot, Reason: reasons.Protected, Detail: p.String()})
			continue
		}
		r.Inactive, r.Organizations = append(r.Inactive, bot), append(r.Organizations, all.Organizations[i])
	}
	return r, err
}

// stop ends the run before the next range because the queue is full. The continuation resumes the
// pass.
func (w *tokenWalk) stop(ctx context.Context) error {
	stay := gitlab.BotRange{Last: w.pass.Cursor, More: true}
	if _, err := w.save(ctx, stay, true); err != nil {
		return err
	}
	why := fmt.Sprintf("%s: at least %d users are queued for deletion (workers.%s.max_queued = %d)",
		fault.ReasonQueueFull, w.config.MaxQueued, Name, w.config.MaxQueued)
	w.x.Limit(why, why)
	return nil
}

// roomShare is the part of max_queued that must be free before a full queue lets the pass continue.
// Else each deletion would start a run of its own.
const roomShare = 10

// full reports whether the continuation should wait for more room.
func (k *inactiveTokens) full(ctx context.Context) (bool, error) {
	if k.config.MaxQueued == 0 {
		return false, nil
	}
	features, err := k.schema.Read(ctx)
	if err != nil {
		return false, err
	}
	waiting, err := k.waitingDeletions(ctx, features)
	return waiting > k.config.MaxQueued-max(1, k.config.MaxQueued/roomShare), err
}
