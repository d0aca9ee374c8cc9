package inactivetoken

import (
	"cmp"
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/deletion"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"0 0 * * *" catch_up:"true"`
	// BatchSize is how many bots are judged at a time, in one transaction.
	BatchSize int `key:"batch_size" default:"1000" max:"10000"`
	// MaxRuntime is how long a run goes on; its lease holds 10 s longer. Under a second the log warns at the start.
	MaxRuntime time.Duration `key:"max_runtime" default:"180s" max:"24h"`
	// ContinueAfter is how long after its end a run that took longer is gone on with.
	ContinueAfter time.Duration `key:"continue_after" default:"120s" max:"24h"`
	// MaxQueued is how many users may wait for their deletion, whoever has queued them, before a run ends early with
	// QUEUE_FULL.
	MaxQueued int `key:"max_queued" default:"100000" max:"10000000" off:"0"`
}

// inactiveTokens is the worker inactive_token_deletion: it finds the
// project bots whose tokens have all been dead for N days, or that have none, and queues the deletion of each.
//
// Due is every project bot that is not in the queue of the ghost migration yet. A pass is one walk over them in the order
// of their ids, with the rules of the moment at which it began. It is stored, and outlives the runs that work on it.
//
// One run:
//
//  1. The setting N is read. Null switches the worker off and drops an unfinished pass; an invalid one fails the run.
//  2. An unfinished pass is gone on with, else one is opened: T is the start of the run, C is N times 24 hours earlier.
//  3. The next batch_size bots above the cursor are judged in one query.
//     If max_queued users wait for their deletion the run ends, with the continuation of 5; where there is room for some,
//     the range is smaller.
//  4. The jobs delete_user of those that are inactive, the cursor behind the range and the totals are one transaction.
//  5. No bot has a higher id: the pass is finished. Else, with max_runtime over, the transaction has queued the job
//     continue_inactive_token_deletion, due continue_after later, and the run ends. Else back to 3.
//
// Invariants: cursor and jobs are stored both or neither, so a pass that is interrupted anywhere goes on with the next
// range, and no bot has two jobs. A bot gets its job whatever it was that dawdled: the job looks at the tokens again.
// A range that takes too long is tried again in smaller parts; any other failure ends the run, and the next goes on.
type inactiveTokens struct {
	run.Deps
	config Config
	schema *deletion.UserSchema
	// worker is what runs are started of.
	worker *run.Worker
}

func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	k := &inactiveTokens{Deps: d, config: config, schema: deletion.NewUserSchema(d)}
	k.worker = &run.Worker{
		Name:       "inactive_token_deletion",
		Config:     config.WorkerConfig,
		Missing:    k.missing,
		MaxRuntime: func(string, map[string]bool) (time.Duration, bool) { return config.MaxRuntime, false },
		Work:       k.work,
		Abandoned:  k.abandoned,
		Backlog:    k.backlog,
		Actions:    map[string]string{"examined_users": "examined", "scheduled_jobs": "scheduled"},
	}
	return k.worker, []job.Kind{
		{Name: repo.ContinueInactiveTokenDeletion{}.Kind(), Work: k.continuePass},
	}, nil
}

// missing is what it needs itself, or its jobs need.
func (k *inactiveTokens) missing(ctx context.Context) (string, error) {
	if k.Queue == nil {
		return "no queue for its jobs", nil
	}
	features, err := k.schema.Look(ctx)
	return cmp.Or(features.Missing, features.MissingTokens), err
}

func (k *inactiveTokens) work(ctx context.Context, x *run.Execution) error {
	features, err := k.schema.Look(ctx)
	if err != nil {
		return err
	}
	if lacks := cmp.Or(features.Missing, features.MissingTokens); lacks != "" {
		return &run.FailedError{Text: lacks}
	}
	setting, err := x.Database.TokenSetting(ctx, features)
	switch {
	case err != nil:
		return err
	case setting.Invalid != "":
		return deletion.InvalidSetting(setting)
	case setting.Off:
		return k.switchedOff(ctx, x)
	}
	w := &tokenWalk{inactiveTokens: k, x: x, features: features, limit: k.config.BatchSize, admins: map[int64]*int64{}}
	rules := repo.NewTokenRules(x.Now(), setting.Days)
	if x.DryRun {
		w.pass = repo.TokenPass{TokenRules: rules}
		return w.run(ctx)
	}
	// A run that is to go on with a pass opens none: another run may have finished it just now.
	resume := x.Snapshot().Reason == run.ReasonContinuation
	err = x.Write(ctx, x.Database, tokenLimits(), func(f repo.Fence, l repo.Limits) (err error) {
		w.pass, err = x.Database.OpenTokenPass(ctx, f, rules, resume, l)
		return err
	})
	if err != nil {
		return err
	}
	if w.pass.ID == "" {
		return &run.SkippedError{Reason: run.ReasonTargetGone}
	}
	return w.run(ctx)
}

// switchedOff is a run that the setting keeps from working.
func (k *inactiveTokens) switchedOff(ctx context.Context, x *run.Execution) error {
	if !x.DryRun {
		var dropped bool
		err := x.Write(ctx, x.Database, tokenLimits(), func(f repo.Fence, l repo.Limits) (err error) {
			dropped, err = x.Database.DropTokenPass(ctx, f, l)
			return err
		})
		if err != nil {
			return err
		}
		if dropped {
			x.Log.InfoContext(ctx, "unfinished pass dropped, the setting is off")
		}
	}
	return &run.SkippedError{Reason: run.ReasonSettingOff, Text: repo.TokenSettingOff}
}

func (k *inactiveTokens) backlog(ctx context.Context, d *repo.Database) (repo.Backlog, string, error) {
	b, goesOn, err := d.TokenBacklog(ctx, repo.Limits{Statement: run.BacklogPatience, Lock: time.Second})
	if err != nil {
		return repo.Backlog{}, "", err
	}
	remark := ""
	switch {
	case goesOn.After(b.ReadAt):
		remark = "the unfinished pass goes on at " + goesOn.UTC().Format(time.RFC3339)
	case !goesOn.IsZero():
		remark = "the unfinished pass goes on as soon as a server works its job continue_inactive_token_deletion"
	}
	b.Dead, err = d.CountDiscardedJobs(ctx, repo.DeleteUser{}.Kind(), `{"reason": "`+repo.TokenDeletionReason+`"}`)
	return b, remark, err
}
