package token

import (
	"cmp"
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "inactive_token_deletion"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"0 0 * * *" catch_up:"true"`
	// BatchSize is the number of bots that a transaction examines.
	BatchSize int `key:"batch_size" default:"1000" max:"10000"`
	// MaxRuntime is the maximum duration of a run, at least a few seconds. The run's lease lasts 10
	// seconds longer.
	MaxRuntime time.Duration `key:"max_runtime" default:"180s" max:"24h"`
	// ContinueAfter is the time after which another run continues a run that reached max_runtime.
	ContinueAfter time.Duration `key:"continue_after" default:"120s" max:"24h"`
	// MaxQueued is the number of users queued for deletion at which a run ends early with QUEUE_FULL.
	// Users that other programs queued also count.
	MaxQueued int `key:"max_queued" default:"100000" max:"10000000" off:"0"`
}

// DoneCounts are the counts of due bots that a run has handled.
func (Config) DoneCounts() []string { return []string{"examined_users"} }

// inactiveTokens is the worker. The package comment is its design.
type inactiveTokens struct {
	run.Deps
	config Config
	schema *deletion.UserSchema
	// worker is the worker that New returned: the continuation starts its runs.
	worker *run.Worker
}

// New makes the worker without connecting, with the kinds of job that belong to it. An error names
// the wrong configuration key.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	k := &inactiveTokens{Deps: d, config: config, schema: deletion.NewUserSchema(d)}
	k.worker = &run.Worker{
		Name:    Name,
		Config:  config.WorkerConfig,
		Missing: k.missing,
		Uses:    run.InMain(gitlab.UserUses()), // its job judges tokens by the same rules
		MaxRuntime: func(string, map[string]bool) (time.Duration, bool) {
			return config.MaxRuntime, false
		},
		Work:       k.work,
		Candidates: true,
		Abandoned:  k.abandoned,
		Backlog:    k.backlog,
		JobReason:  jobqueue.TokenDeletionReason,
		Actions:    map[string]string{"examined_users": "examined", "scheduled_jobs": "scheduled"},
	}
	return k.worker, []job.Kind{{
		Name: jobqueue.ContinueInactiveTokenDeletion{}.Kind(), Work: k.continuePass,
		Traced: []string{"continued_by"}, Worker: Name,
	}}, nil
}

// missing returns what the worker, or its jobs, require and the database does not have.
func (k *inactiveTokens) missing(ctx context.Context) (string, error) {
	if k.Queue == nil {
		return "no job queue", nil
	}
	features, err := k.schema.Read(ctx)
	return cmp.Or(features.Missing, features.MissingTokens), err
}

// work walks the inactive tokens, up to config.BatchSize. It fails if the schema or the setting is
// unusable. If the setting is off, it changes no user.
func (k *inactiveTokens) work(ctx context.Context, x *run.Execution) error {
	// 1. Check the schema and the setting.
	features, err := k.schema.Read(ctx)
	if err != nil {
		return err
	}
	if missing := cmp.Or(features.Missing, features.MissingTokens); missing != "" {
		return &fault.FailedError{Text: missing}
	}
	setting, err := x.Database.Tokens.TokenSetting(ctx, features)
	switch {
	case err != nil:
		return err
	case setting.Invalid != "":
		return deletion.InvalidSetting(setting)
	case setting.Off:
		return k.switchedOff(ctx, x)
	}
	// 2. Read the protections and the rules of this run.
	w := &tokenWalk{
		inactiveTokens: k, x: x, features: features,
		limit: k.config.BatchSize, admins: map[int64]*int64{},
	}
	if w.kept, err = x.Database.Protections.Keeping(ctx, tokenLimits()); err != nil {
		return err
	}
	rules := gitlab.NewTokenRules(x.Now(), setting.Days)
	if x.DryRun {
		w.pass = gitlab.TokenPass{TokenRules: rules}
		return w.run(ctx)
	}
	// A continuation opens no pass: another run may have just finished this one.
	resume := x.Snapshot().Reason == run.ReasonContinuation
	if w.pass, err = open(ctx, x, rules, resume); err != nil {
		return err
	}
	if w.pass.ID == "" {
		return &fault.SkippedError{Reason: reasons.TargetGone}
	}
	return w.run(ctx)
}

// open resumes the unfinished pass, or opens another unless the run may only resume.
func open(
	ctx context.Context, x *run.Execution, rules gitlab.TokenRules, resume bool,
) (pass gitlab.TokenPass, err error) {
	permit, err := x.Permit(ctx, x.Database, catalog.Table{}, tokenLimits())
	if err != nil {
		return pass, err
	}
	defer permit.End(&err)
	return x.Database.Tokens.OpenTokenPass(ctx, permit.Permit, rules, resume)
}

// drop deletes the unfinished pass, and reports whether there was one.
func drop(ctx context.Context, x *run.Execution) (dropped bool, err error) {
	permit, err := x.Permit(ctx, x.Database, catalog.Table{}, tokenLimits())
	if err != nil {
		return false, err
	}
	defer permit.End(&err)
	return x.Database.Tokens.DropTokenPass(ctx, permit.Permit)
}

// switchedOff ends a run because the setting is null, and drops the unfinished pass.
func (k *inactiveTokens) switchedOff(ctx context.Context, x *run.Execution) error {
	if !x.DryRun {
		dropped, err := drop(ctx, x)
		if err != nil {
			return err
		}
		if dropped {
			x.Log.InfoContext(ctx, "deletion disabled, unfinished bot check dropped")
		}
	}
	return &fault.SkippedError{Reason: reasons.SettingOff, Text: gitlab.TokenSettingOff}
}

// backlog counts the bots above the cursor of the unfinished pass. Its remark is when that pass
// resumes. Dead counts the discarded jobs that this worker has queued.
func (k *inactiveTokens) backlog(
	ctx context.Context, d *repo.Database,
) (control.Backlog, string, error) {
	limits := fencing.Limits{Statement: run.BacklogTimeout, Lock: time.Second}
	b, goesOn, err := d.Tokens.TokenBacklog(ctx, limits)
	if err != nil {
		return control.Backlog{}, "", err
	}
	remark := ""
	switch {
	case goesOn.After(b.ReadAt):
		remark = "the unfinished bot check resumes at " + goesOn.UTC().Format(time.RFC3339)
	case !goesOn.IsZero():
		remark = "the unfinished bot check resumes when a server runs the job " +
			jobqueue.ContinueInactiveTokenDeletion{}.Kind()
	}
	ours := `{"reason": "` + jobqueue.TokenDeletionReason + `"}`
	b.Dead, err = d.Jobs.CountDiscardedJobs(ctx, jobqueue.DeleteUser{}.Kind(), ours)
	return b, remark, err
}
