package adjournedgroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/deletion"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "adjourned_group_deletion"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"0 2 * * *" catch_up:"true"`
	// BatchSize is how many groups are decided about at a time.
	BatchSize int `key:"batch_size" default:"100" max:"10000"`
	// Interval lies between two places in the list of the groups that are due: 4320 fill a day.
	Interval time.Duration `key:"interval" default:"20s" max:"24h"`
}

// adjournedGroups is the worker; the package comment is its design.
type adjournedGroups struct {
	run.Deps
	config  Config
	schema  run.SchemaWatch
	removal *deletion.Projects
}

// New makes the worker, with the kinds of job that belong to it. It does not connect; an error names the
// configuration key that is wrong.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	k := &adjournedGroups{Deps: d, config: config, removal: deletion.NewProjectRemovals(d)}
	w := &run.Worker{
		Name:       Name,
		Config:     config.WorkerConfig,
		Missing:    k.missing,
		MaxRuntime: run.Untimed,
		Untimed:    true,
		Work:       k.work,
		Backlog:    k.backlog,
		NotDone:    []string{"failed_groups", "held_groups"},
		Actions: map[string]string{
			"scheduled_jobs": "scheduled", "restored_groups": "restored", "held_groups": "held",
			"failed_groups": "failed",
		},
	}
	return w, []job.Kind{{Name: repo.DestroyGroup{}.Kind(), Work: k.destroyGroup, Owner: job.OwnedBy(w.Name)}}, nil
}

func (k *adjournedGroups) missing(ctx context.Context) (string, error) {
	if k.Queue == nil {
		return "the queue of jobs is not configured", nil
	}
	stores, err := k.stores(ctx)
	return stores.Missing, err
}

// stores looks at what main has, and says once what has changed.
func (k *adjournedGroups) stores(ctx context.Context) (repo.GroupStores, error) {
	found, err := k.Main.GroupStores(ctx)
	if err != nil {
		return found, err
	}
	k.schema.Saw(ctx, k.Logger, "groups", found.PassedOver)
	return found, nil
}

func (k *adjournedGroups) work(ctx context.Context, x *run.Execution) error {
	stores, err := k.stores(ctx)
	if err != nil {
		return err
	}
	days, err := k.period(ctx, stores)
	if err != nil {
		return err
	}
	r := &groupRun{adjournedGroups: k, x: x, held: map[string]int{}, stores: stores, due: repo.Adjournment{At: x.Now(), Days: days}}
	if err := r.decide(ctx); err != nil {
		return err
	}
	// A restore takes both marks away: they are compared before.
	defer r.tellHeld()
	for _, step := range []func(context.Context) error{r.compareStores, r.act, r.lookForLostMarks, r.forgetGone} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	x.Report(func(record *run.Run) {
		record.Reason = strings.Trim(record.Reason+"; "+r.notDone(record.Counts["failed_groups"]), "; ")
	})
	return nil
}

// period is the setting N. An invalid one is a [*failedError].
func (k *adjournedGroups) period(ctx context.Context, stores repo.GroupStores) (int64, error) {
	days, err := k.Main.AdjournedPeriod(ctx, stores)
	const setting, advice = "deletion_adjourned_period in application_settings is ", ": set it to a number of days, 0 or more"
	switch {
	case err != nil:
		return 0, err
	case days == nil:
		return 0, &run.FailedError{Text: setting + "NULL" + advice, Reason: run.ReasonSettingInvalid, Discreet: ""}
	case *days < 0:
		return 0, &run.FailedError{Text: fmt.Sprint(setting, *days, advice), Reason: run.ReasonSettingInvalid, Discreet: setting + "negative" + advice}
	}
	return *days, nil
}

func (k *adjournedGroups) backlog(ctx context.Context, d *repo.Database) (repo.Backlog, string, error) {
	stores, err := k.stores(ctx)
	if err != nil || stores.Missing != "" {
		return repo.Backlog{}, "", err
	}
	now, err := d.Now(ctx)
	if err != nil {
		return repo.Backlog{}, "", err
	}
	remark := ""
	days, err := k.period(ctx, stores)
	if invalid, is := errors.AsType[*run.FailedError](err); is {
		// Nothing is due then; what is marked is.
		days, remark, err = 1<<31-1, invalid.Text, nil
	}
	if err != nil {
		return repo.Backlog{}, "", err
	}
	limits := repo.Limits{Statement: run.BacklogPatience, Lock: run.BacklogPatience}
	b, err := d.GroupBacklog(ctx, stores, repo.Adjournment{At: now, Days: days}, limits)
	if err != nil {
		return repo.Backlog{}, "", err
	}
	progress, err := removalProgress(ctx, d, limits)
	if err != nil {
		return repo.Backlog{}, "", err
	}
	b, remark, err = countLostMarks(ctx, d, stores, b, remark)
	if b.Dead > 0 {
		progress = append(progress, fmt.Sprintf("%d groups are held: somebody has to decide about them", b.Dead))
	}
	return b, strings.TrimPrefix(strings.Join(append([]string{remark}, progress...), "; "), "; "), err
}

// removalProgress says how far the removals are that have begun.
func removalProgress(ctx context.Context, d *repo.Database, l repo.Limits) (words []string, err error) {
	removals, err := d.GroupRemovals(ctx, removalsShown+1, l)
	if len(removals) > removalsShown {
		removals = removals[:removalsShown]
		words = []string{"more removals have begun"}
	}
	for _, r := range removals {
		words = append(words, fmt.Sprintf("removal of group %d, begun %s: %d rows, %d projects and %d groups are gone",
			r.GroupID, r.BegunAt.UTC().Format(time.RFC3339), r.Rows, r.Projects, r.Groups))
	}
	return words, err
}

// removalsShown is of how many removals the status tells the progress.
const removalsShown = 4

// countLostMarks adds the lost marks to the dead, as far as it gets in half of the time that a backlog may take.
func countLostMarks(ctx context.Context, d *repo.Database, stores repo.GroupStores, b repo.Backlog, remark string) (repo.Backlog, string, error) {
	began := time.Now()
	for after := int64(0); ; {
		lost, next, err := d.LostMarks(ctx, stores, after, repo.Limits{Statement: run.BacklogPatience, Lock: run.BacklogPatience})
		b.Dead += int64(len(lost))
		if err != nil || next == 0 {
			return b, remark, err
		}
		if after = next; time.Since(began) > run.BacklogPatience/2 {
			b.AtLeast = true
			return b, remark, nil
		}
	}
}
