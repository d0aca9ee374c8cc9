package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
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
const Name = "adjourned_group_deletion"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"0 2 * * *" catch_up:"true"`
	// BatchSize is the number of groups that a statement reads.
	BatchSize int `key:"batch_size" default:"100" max:"10000"`
	// Interval is the interval between the starts of two group removals. With 20s, at most 4,320
	// removals start per day.
	Interval time.Duration `key:"interval" default:"20s" max:"24h"`
}

// DoneCounts are the counts of due groups that a run has handled.
func (Config) DoneCounts() []string {
	return []string{
		"scheduled_jobs", "restored_groups", "held_groups", "failed_groups",
	}
}

// worker is the worker. The package comment is its design.
type worker struct {
	run.Deps
	config  Config
	schema  run.SchemaLog
	removal *deletion.Projects
}

// New makes the worker and its job destroy_group, without connecting. It always succeeds.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	k := &worker{Deps: d, config: config, removal: deletion.NewProjectRemovals(d)}
	w := &run.Worker{
		Name:          Name,
		Config:        config.WorkerConfig,
		Missing:       k.missing,
		Uses:          run.InMain(slices.Concat(gitlab.GroupUses(), deletion.RemovalUses())),
		NoTimeLimit:   true,
		Candidates:    true,
		Work:          k.work,
		Backlog:       k.backlog,
		Waiting:       k.waiting,
		JobReason:     deletion.GroupDeletedReason,
		FailureCounts: []string{"failed_groups", "held_groups"},
		Actions: map[string]string{
			"scheduled_jobs": "scheduled", "restored_groups": "restored", "held_groups": "held",
			"failed_groups": "failed",
		},
	}
	destroyGroup := job.Kind{
		Name: jobqueue.DestroyGroup{}.Kind(), Work: k.destroyGroup, Plan: k.planGroup,
		Owner:  job.OwnedBy(w.Name),
		Traced: []string{"groups", "projects", "rows", "bots"},
	}
	return w, []job.Kind{destroyGroup}, nil
}

// missing returns why the worker cannot run: no queue of jobs, or a schema without the marks of
// groups. It returns "" if it can.
func (k *worker) missing(ctx context.Context) (string, error) {
	if k.Queue == nil {
		return "no job queue", nil
	}
	stores, err := k.stores(ctx)
	return stores.Missing, err
}

// stores returns the stores of marks in main, and logs missing ones after each change.
func (k *worker) stores(ctx context.Context) (gitlab.GroupStores, error) {
	found, err := k.Main.Groups.GroupStores(ctx)
	if err != nil {
		return found, err
	}
	k.schema.Report(ctx, k.Logger, "groups", found.MissingOptional)
	return found, nil
}

// work is one run: it decides on every due group, acts on the decisions, and reports the groups
// held or not done.
func (k *worker) work(ctx context.Context, x *run.Execution) error {
	// 1. Read where this schema stores the marks, and the retention period.
	stores, err := k.stores(ctx)
	if err != nil {
		return err
	}
	days, err := k.period(ctx, stores)
	if err != nil {
		return err
	}
	r := &workerRun{
		worker: k, x: x, stores: stores, due: gitlab.Adjournment{At: x.Now(), Days: days},
		held: map[string]int{},
	}
	// 2. Decide on all groups before the first change.
	if err := r.decide(ctx); err != nil {
		return err
	}
	defer r.reportHeld()
	// 3. Act on the decisions. The first error ends the run.
	for _, step := range []func(context.Context) error{
		r.compareStores, r.act, r.holdLostMarks, r.forgetGone,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	x.Report(func(record *run.Run) {
		record.Reason = format.Join(record.Reason, r.notDone(record.Counts["failed_groups"]))
	})
	return nil
}

// period returns deletion_adjourned_period, in days, or a [*fault.FailedError] if it is invalid.
func (k *worker) period(ctx context.Context, stores gitlab.GroupStores) (int64, error) {
	days, err := k.Main.Groups.AdjournedPeriod(ctx, stores)
	const setting = "deletion_adjourned_period in application_settings is "
	const advice = ": set the period to 0 or more days"
	invalid := &fault.FailedError{Reason: fault.ReasonSettingInvalid}
	switch {
	case err != nil:
		return 0, err
	case days == nil:
		invalid.Text = setting + "NULL" + advice
		return 0, invalid
	case *days < 0:
		invalid.Text = fmt.Sprint(setting, *days, advice)
		invalid.Redacted = setting + "negative" + advice
		return 0, invalid
	}
	return *days, nil
}

// backlogLimits returns the timeouts of each query for the status of this worker.
func backlogLimits() fencing.Limits {
	return fencing.Limits{Statement: run.BacklogTimeout, Lock: run.BacklogTimeout}
}

// marks returns the stores of marks, and the groups due now.
func (k *worker) marks(
	ctx context.Context, d *repo.Database,
) (stores gitlab.GroupStores, a gitlab.Adjournment, remarks []string, err error) {
	if stores, err = k.stores(ctx); err != nil || stores.Missing != "" {
		return stores, a, nil, err
	}
	if a.At, err = d.Now(ctx); err != nil {
		return stores, a, nil, err
	}
	a.Days, err = k.period(ctx, stores)
	if invalid, ok := errors.AsType[*fault.FailedError](err); ok {
		// No group is due then, but marked groups still count.
		a.Days, remarks, err = math.MaxInt32, []string{invalid.Text}, nil
	}
	return stores, a, remarks, err
}

// waiting lists the first 100 groups that are held if dead, else those in their grace period or
// vetoed. To the held ones it adds lost marks, up to lostMarksShown entries in all.
func (k *worker) waiting(
	ctx context.Context, d *repo.Database, dead bool,
) ([]jobqueue.Waiting, error) {
	stores, adjournment, _, err := k.marks(ctx, d)
	if err != nil || stores.Missing != "" {
		return nil, err
	}
	list, err := d.Groups.WaitingGroups(ctx, stores, adjournment, dead, backlogLimits())
	if err != nil || !dead {
		return list, err
	}
	_, err = eachLostMark(ctx, d, stores, func(lost []int64) {
		for _, id := range lost {
			if len(list) < lostMarksShown {
				list = append(list, jobqueue.Waiting{
					Kind: "group", ID: id, Code: reasons.ScheduleLost, Reason: reasons.ScheduleLost + ": " + lostMark,
				})
			}
		}
	})
	return list, err
}

// backlog reads the figures of the marks, with remarks on running removals and held groups. Lost
// marks count as dead. AtLeast is set if not all were read.
func (k *worker) backlog(
	ctx context.Context, d *repo.Database,
) (b control.Backlog, remark string, err error) {
	stores, adjournment, remarks, err := k.marks(ctx, d)
	if err != nil || stores.Missing != "" {
		return b, "", err
	}
	limits := backlogLimits()
	b, err = d.Groups.GroupBacklog(ctx, stores, adjournment, limits)
	if err != nil {
		return control.Backlog{}, "", err
	}
	progress, err := removalProgress(ctx, d, limits)
	if err != nil {
		return control.Backlog{}, "", err
	}
	remarks = append(remarks, progress...)
	all, err := eachLostMark(ctx, d, stores, func(lost []int64) { b.Dead += int64(len(lost)) })
	b.AtLeast = b.AtLeast || !all
	if b.Dead > 0 {
		remarks = append(remarks,
			fmt.Sprintf("%s held for a decision (to list the groups, run `caretaker run %s --dry-run`)",
				format.Pluralize(b.Dead, "group"), Name))
	}
	return b, strings.Join(remarks, "; "), err
}

// removalsShown is the maximum number of removals with progress in the status.
const removalsShown = 4

// removalProgress describes the progress of started removals.
func removalProgress(
	ctx context.Context, d *repo.Database, l fencing.Limits,
) (remarks []string, err error) {
	removals, err := d.Groups.GroupRemovals(ctx, removalsShown+1, l)
	if len(removals) > removalsShown {
		removals = removals[:removalsShown]
		remarks = []string{fmt.Sprintf("more than %d removals are in progress", removalsShown)}
	}
	for _, r := range removals {
		const progress = "removal of group %d, started %s: %s, %s and %s removed"
		remarks = append(remarks, fmt.Sprintf(progress,
			r.GroupID, r.StartedAt.UTC().Format(time.RFC3339), format.Pluralize(r.Rows, "row"),
			format.Pluralize(r.Projects, "project"), format.Pluralize(r.Groups, "group")))
	}
	return remarks, err
}

// lostMark describes the problem of a group with a lost mark.
const lostMark = "the state or path of the group shows that it is scheduled for deletion, but no deletion date is stored"

// lostMarksShown is the maximum number of listed lost marks.
const lostMarksShown = 100

// eachLostMark calls a function with the groups whose marks are lost, page by page. That requires
// reading all groups: it stops after half of a backlog's time limit, with all false.
func eachLostMark(
	ctx context.Context, d *repo.Database, stores gitlab.GroupStores, found func(groups []int64),
) (all bool, err error) {
	began := time.Now()
	for after := int64(0); ; {
		lost, next, err := d.Groups.LostMarks(ctx, stores, after, backlogLimits())
		found(lost)
		if err != nil || next == 0 {
			return true, err
		}
		if after = next; time.Since(began) > run.BacklogTimeout/2 {
			return false, nil
		}
	}
}
