package placeholder

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "placeholder_user_cleanup"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"0 0 * * *" catch_up:"true"`
	// MaxAttempts is the maximum number of attempts to delete a user.
	MaxAttempts int `key:"max_attempts" default:"15" max:"1000"`
	// RetryPeriod is the minimum time between two attempts to delete a user.
	RetryPeriod time.Duration `key:"retry_period" default:"48h" max:"8760h"`
	// Interval is the interval between the starts of two jobs of a run.
	Interval time.Duration `key:"interval" default:"1s" max:"24h"`
	// BatchSize is the number of users that a transaction claims.
	BatchSize int `key:"batch_size" default:"1000" max:"10000"`
}

// DoneCounts are the counts of due rows that a run has handled.
func (Config) DoneCounts() []string { return []string{"scheduled_jobs", "exhausted_users"} }

// placeholderUserCleanup is the worker. The package comment is its design.
type placeholderUserCleanup struct {
	config Config
	main   *repo.Database
	queue  jobqueue.Queue
	logger *slog.Logger
	schema run.SchemaLog
}

// New makes the worker without connecting, with the kinds of job that belong to it. An error names
// the wrong configuration key.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	p := &placeholderUserCleanup{config: config, main: d.Main, queue: d.Queue, logger: d.Logger}
	d.Databases = run.GitLabs(d.Databases)
	attempts := &placeholderDeletion{databases: d.Databases, queue: d.Queue}
	w := &run.Worker{
		Name:        Name,
		Config:      config.WorkerConfig,
		Missing:     p.missing,
		NoTimeLimit: true,
		Candidates:  true,
		Work:        p.work,
		Backlog:     p.backlog,
		JobReason:   jobqueue.PlaceholderDeletionReason,
		Actions:     map[string]string{"scheduled_jobs": "scheduled", "exhausted_users": "exhausted"},
		Waiting:     p.waiting,
		Uses:        gitlab.PlaceholderUses,
	}
	return w, []job.Kind{{
		Name: jobqueue.DeletePlaceholderUser{}.Kind(), Work: attempts.work, Plan: attempts.plan,
		Owner: job.OwnedBy(w.Name), Traced: []string{"table", "column"},
	}}, nil
}

// claimLimits bound each statement of a claim.
func claimLimits() fencing.Limits {
	return fencing.Limits{Statement: 2 * time.Second, Lock: time.Second}
}

// missing returns what the worker, or the jobs that it causes, require and main does not have.
func (p *placeholderUserCleanup) missing(ctx context.Context) (string, error) {
	if p.queue == nil {
		return "no job queue", nil
	}
	rules, err := p.rules(ctx, time.Time{})
	if err != nil || rules.Tables.Missing != "" {
		return rules.Tables.Missing, err
	}
	features, err := p.main.Users.UserFeatures(ctx)
	return features.Missing, err
}

// rules returns the rules of a run that starts now, with the current tables.
func (p *placeholderUserCleanup) rules(
	ctx context.Context, now time.Time,
) (gitlab.PlaceholderRules, error) {
	tables, err := p.main.Placeholders.PlaceholderTables(ctx)
	if err == nil {
		p.schema.Report(ctx, p.logger, "placeholder users", tables.MissingOptional)
	}
	return gitlab.PlaceholderRules{
		MaxAttempts: p.config.MaxAttempts, RetryPeriod: p.config.RetryPeriod, Now: now, Tables: tables,
	}, err
}

// work queues a job for each due placeholder user, or only counts them in a dry run. It then
// reports the vetoed users.
func (p *placeholderUserCleanup) work(ctx context.Context, x *run.Execution) error {
	rules, err := p.rules(ctx, x.Now())
	if err == nil {
		rules.Kept, err = p.main.Protections.Keeping(ctx, claimLimits())
	}
	if err != nil {
		return err
	}
	if x.DryRun {
		err = p.dryRun(ctx, x, rules)
	} else {
		err = p.claimAll(ctx, x, rules)
	}
	if err != nil {
		return err
	}
	return p.reportVetoed(ctx, x, rules)
}

// reportVetoed logs the users that the run has skipped.
func (p *placeholderUserCleanup) reportVetoed(
	ctx context.Context, x *run.Execution, rules gitlab.PlaceholderRules,
) error {
	vetoed, err := p.main.Users.VetoedPlaceholders(ctx, rules)
	for _, v := range vetoed {
		x.Candidate(control.Candidate{
			Kind: control.KindPlaceholder, ID: v.Target, Action: run.ActionHold, Reason: v.Reason + ": " + v.Detail,
		})
		x.Log.InfoContext(ctx, "user skipped",
			"user_id", v.Target, "reason", v.Reason, "why", v.Detail)
	}
	return err
}

// inFlight is the number of parallel pages: one is claimed while the jobs of another are inserted.
const inFlight = 2

// claimAll claims page after page. A failed page ends the run together with the parallel one, which
// is not stopped.
func (p *placeholderUserCleanup) claimAll(
	ctx context.Context, x *run.Execution, rules gitlab.PlaceholderRules,
) error {
	var pages errgroup.Group
	pages.SetLimit(inFlight)
	var failed atomic.Bool
	at, more := gitlab.PlaceholderPosition{After: gitlab.BeforePlaceholders}, true
	for more && !failed.Load() {
		next := make(chan gitlab.PlaceholderPosition, 1)
		pages.Go(func() error {
			defer close(next)
			err := fault.RecoverPanic(func() error { return p.page(ctx, x, rules, at, next) })
			if err != nil {
				failed.Store(true)
			}
			return err
		})
		at, more = <-next
	}
	return pages.Wait()
}

// page claims a page and queues its jobs. It sends the start of the following page to next.
func (p *placeholderUserCleanup) page(
	ctx context.Context, x *run.Execution, rules gitlab.PlaceholderRules,
	at gitlab.PlaceholderPosition, next chan<- gitlab.PlaceholderPosition,
) error {
	var claim gitlab.PlaceholderClaim
	err := x.Batch(ctx, func(ctx context.Context) (err error) {
		page, err := p.next(ctx, x, rules, at.After)
		if err != nil {
			return err
		}
		claim, err = p.claim(ctx, x, page, gitlab.PlaceholderJobs{
			Queue: p.queue, Origin: x.Origin(ctx), First: at.First, Interval: p.config.Interval, Next: next,
		})
		if err == nil {
			x.Count(ctx, "scheduled_jobs", int64(claim.Scheduled))
			x.Count(ctx, "exhausted_users", int64(len(claim.Exhausted)))
			x.Changed(deletion.ImportDetails, 0, int64(claim.Claimed))
		}
		return err
	}, batchStart(at.After)...)
	if err != nil {
		return err
	}
	for _, user := range claim.Exhausted {
		//nolint:sloglint // docs/reference/workers/placeholder_user_cleanup.md fixes the text
		x.Log.WarnContext(ctx, fmt.Sprintf("Maximum deletion attempts (%d) reached. "+
			"Making the final attempt to delete the placeholder user.", p.config.MaxAttempts),
			"placeholder_user_id", user)
	}
	return nil
}

// next reads the page after an id. With an expected plan it has planned rows only.
func (p *placeholderUserCleanup) next(
	ctx context.Context, x *run.Execution, rules gitlab.PlaceholderRules, after int64,
) (gitlab.PlaceholderPage, error) {
	if !x.HasAllowed() {
		return p.main.Placeholders.PlaceholderPage(ctx, rules, after, p.config.BatchSize, claimLimits()), nil
	}
	for {
		rows, err := p.main.Placeholders.PreviewPlaceholders(
			ctx, rules, after, p.config.BatchSize, run.ReadLimits())
		if err == nil {
			err = x.Stopped()
		}
		if err != nil {
			return gitlab.PlaceholderPage{}, err
		}
		planned := []int64{}
		for _, row := range rows {
			if after = row.ID; x.MayTouch(control.KindPlaceholder, row.User, run.ActionQueue) {
				planned = append(planned, row.ID)
			}
		}
		if len(planned) > 0 || len(rows) == 0 {
			return gitlab.PlaceholdersWithIDs(rules, planned), nil
		}
	}
}

// claim claims a page with its jobs.
func (p *placeholderUserCleanup) claim(
	ctx context.Context, x *run.Execution, page gitlab.PlaceholderPage, jobs gitlab.PlaceholderJobs,
) (claim gitlab.PlaceholderClaim, err error) {
	permit, err := x.Permit(ctx, p.main, catalog.Table{Name: deletion.ImportDetails}, claimLimits())
	if err != nil {
		return claim, err
	}
	defer permit.End(&err)
	return p.main.Placeholders.ClaimPlaceholders(ctx, permit.Permit, page, jobs)
}

// batchStart returns the start of a batch as a span attribute, unless it is the first.
func batchStart(last int64) []attribute.KeyValue {
	if last == gitlab.BeforePlaceholders {
		return nil
	}
	return []attribute.KeyValue{attribute.Int64("maintenance.after_id", last)}
}

// dryRun walks the same pages and counts what a run that starts now would do.
func (p *placeholderUserCleanup) dryRun(
	ctx context.Context, x *run.Execution, rules gitlab.PlaceholderRules,
) error {
	last, counted := gitlab.BeforePlaceholders, map[int64]bool{}
	for x.Left() > 0 {
		if err := x.Stopped(); err != nil {
			return err
		}
		var page []gitlab.PlaceholderPreview
		err := x.Batch(ctx, func(ctx context.Context) (err error) {
			page, err = p.main.Placeholders.PreviewPlaceholders(
				ctx, rules, last, p.config.BatchSize, run.ReadLimits())
			x.Changed(deletion.ImportDetails, 0, int64(len(page)))
			for _, row := range page {
				p.preview(ctx, x, row, counted)
			}
			return err
		}, batchStart(last)...)
		if err != nil || len(page) == 0 {
			return err
		}
		last = page[len(page)-1].ID
	}
	x.Limit(run.DryRunOver, run.DryRunOver)
	return nil
}

// preview counts and records what a run would do with a row. counted are the users with a job.
func (p *placeholderUserCleanup) preview(
	ctx context.Context, x *run.Execution, row gitlab.PlaceholderPreview, counted map[int64]bool,
) {
	var why []string
	if row.Waiting || counted[row.User] {
		why = append(why, fault.JobWaits)
	} else {
		counted[row.User] = true
		x.Count(ctx, "scheduled_jobs", 1)
	}
	if row.Exhausted {
		why = append(why, "last attempt")
		x.Count(ctx, "exhausted_users", 1)
	}
	x.Candidate(control.Candidate{
		Kind: control.KindPlaceholder, ID: row.User, Action: run.ActionQueue,
		Reason: strings.Join(why, "; "),
	})
}

// backlog reads the figures of due placeholder users. A schema without the tables has a backlog of
// 0.
func (p *placeholderUserCleanup) backlog(
	ctx context.Context, d *repo.Database,
) (control.Backlog, string, error) {
	rules, err := p.rulesNow(ctx, d)
	if err != nil || rules.Tables.Missing != "" {
		return control.Backlog{}, "", err
	}
	b, err := d.Placeholders.PlaceholderBacklog(ctx, rules, run.BacklogLimits())
	return b, "", err
}

// waiting lists the first 100 placeholder users: the dead ones if dead, else vetoed ones and those
// waiting for their next attempt. A schema without the tables has none.
func (p *placeholderUserCleanup) waiting(
	ctx context.Context, d *repo.Database, dead bool,
) ([]jobqueue.Waiting, error) {
	rules, err := p.rulesNow(ctx, d)
	if err != nil || rules.Tables.Missing != "" {
		return nil, err
	}
	return d.Placeholders.WaitingPlaceholders(ctx, rules, dead, run.BacklogLimits())
}

// rulesNow returns the rules at the database's time, with the protections in force. It reads the
// time, the schema and the protections one after the other.
func (p *placeholderUserCleanup) rulesNow(
	ctx context.Context, d *repo.Database,
) (rules gitlab.PlaceholderRules, err error) {
	now, err := d.Now(ctx)
	if err == nil {
		rules, err = p.rules(ctx, now)
	}
	if err == nil && rules.Tables.Missing == "" {
		rules.Kept, err = d.Protections.Keeping(ctx, run.BacklogLimits())
	}
	return rules, err
}
