package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// plan is what has to be done for the records of one parent, and how far loading them has got.
type plan struct {
	// recorded is the parent's name in the records.
	recorded string
	steps    []*step
	// absent are the definitions whose child is in no configured database, and not accepted: they hold the records.
	absent   []repo.LooseForeignKey
	position repo.Position
}

// step is one definition on one home of its child, in the order in which they are done.
type step struct {
	key repo.LooseForeignKey
	// child is nil where nobody knows whether the child is in database, because it does not answer.
	child    *repo.Child
	database string
	// down says why nothing can be done here in this run.
	down error
}

// plan makes the steps of the parents that have definitions: one all of whose children are accepted as absent counts as
// one without, and is left alone.
func (k *looseForeignKeys) plan(ctx context.Context, x *run.Execution, queue repo.Queue) ([]*plan, error) {
	accepted, err := k.acceptedAbsent(ctx)
	if err != nil {
		return nil, err
	}
	homes, silent, err := k.homes(ctx, x, k.config.Definitions.Keys)
	if err != nil {
		return nil, err
	}
	byParent := map[string]*plan{}
	var returned, absent []string
	for i, key := range k.config.Definitions.Keys {
		p := byParent[key.Parent]
		if p == nil {
			p = &plan{recorded: queue.Schema + "." + key.Parent}
			byParent[key.Parent] = p
		}
		switch found := p.add(key, i, homes); {
		case found && accepted[key.Table]:
			returned = append(returned, key.Table)
		case found:
		case len(silent) > 0:
			p.steps = append(p.steps, &step{key: key, database: silent[0].name, down: silent[0].err})
		case !accepted[key.Table]:
			p.absent = append(p.absent, key)
			absent = append(absent, key.Table)
		}
	}
	if len(silent) == 0 {
		k.noteAbsent(ctx, x, slices.Compact(absent))
	}
	var plans []*plan
	for _, p := range byParent {
		if len(p.steps)+len(p.absent) > 0 {
			plans = append(plans, p)
		}
	}
	return plans, k.endAbsence(ctx, x, slices.Compact(returned))
}

// add adds the steps of a definition, the i-th, on the homes of its child, and says whether there are any.
func (p *plan) add(key repo.LooseForeignKey, i int, homes [][]*repo.Child) (found bool) {
	for _, children := range homes {
		if child := children[i]; child != nil {
			p.steps = append(p.steps, &step{key: key, child: child, database: child.Database.Name})
			found = true
		}
	}
	return found
}

type silentDatabase struct {
	name string
	err  error
}

// homes looks for the children in every configured database, the queue's own last. One that does not answer is silent:
// absence is a fact only if all of them answered.
func (k *looseForeignKeys) homes(ctx context.Context, x *run.Execution, keys []repo.LooseForeignKey) (homes [][]*repo.Child, silent []silentDatabase, err error) {
	var own []*repo.Child
	for _, d := range k.Databases {
		children, err := d.Children(ctx, keys)
		switch {
		case err == nil && d == x.Database:
			own = children
		case err == nil:
			homes = append(homes, children)
		case d != x.Database && hidden(err):
			x.Log.WarnContext(ctx, "database unreachable, children are not looked for there", "child_database", d.Name, "error", err)
			silent = append(silent, silentDatabase{d.Name, err})
		default:
			return nil, nil, err
		}
	}
	return append(homes, own), silent, nil
}

// hidden says that a database does not show which tables it has: it does not answer, or our role may
// not see its application schema.
func hidden(err error) bool {
	_, noSchema := errors.AsType[*repo.NoSchemaError](err)
	return noSchema || errors.Is(err, repo.ErrUnreachable)
}

// warnOfStarvation names the databases that no fire works, in the log and for the worker's status.
func (k *looseForeignKeys) warnOfStarvation() (remark string) {
	var names []string
	for _, i := range starvedDatabases(k.config.Schedule, len(k.Databases)) {
		name := k.Databases[i].Name
		names = append(names, name)
		k.Logger.Warn("the schedule never fires in a minute in which it is this database's turn: "+
			"choose one that fires every minute, or set rotation to all",
			"worker", "loose_foreign_keys_cleanup", "database", name, "schedule", k.config.Schedule)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("the schedule %s never fires in a minute in which it is the turn of %s, so only requests start runs there: "+
		"choose a schedule that fires every minute, or set workers.loose_foreign_keys_cleanup.rotation to all",
		k.config.Schedule, strings.Join(names, ", "))
}

// maintainPartitions rolls, drops and mends the partitions of a queue that caretaker made. What does not work out is
// left for the next run; only a lost lease ends this one.
func (k *looseForeignKeys) maintainPartitions(ctx context.Context, x *run.Execution, queue repo.Queue) (repo.Queue, error) {
	if !queue.Managed {
		return queue, nil
	}
	changed := false
	for _, do := range []func(repo.Permit) error{
		func(p repo.Permit) error {
			repaired, err := x.Database.RepairPartition(ctx, p, queue)
			if repaired {
				changed = true
				x.Log.WarnContext(ctx, "the queue's active partition was missing and has been created", "partition", queue.Active)
			}
			return err
		},
		func(p repo.Permit) error {
			next, err := x.Database.RollPartition(ctx, p, queue)
			if next != 0 {
				changed = true
				x.Log.InfoContext(ctx, "queue rolled to a new partition", "partition", next)
			}
			return err
		},
		func(p repo.Permit) error {
			dropped, err := x.Database.DropPartitions(ctx, p, queue)
			if len(dropped) > 0 {
				changed = true
				x.Log.InfoContext(ctx, "empty partitions of the queue dropped", "partitions", dropped)
			}
			return err
		},
	} {
		err := permitted(ctx, x, do)
		if errors.Is(err, repo.ErrLeaseLost) || x.Stopped() != nil {
			return queue, err
		}
		if err != nil {
			x.Log.WarnContext(ctx, "the queue's partitions are left for the next run", "error", err)
		}
	}
	if !changed {
		return queue, nil
	}
	return x.Database.Queue(ctx)
}

// permitted does a step on partitions.
func permitted(ctx context.Context, x *run.Execution, do func(repo.Permit) error) (err error) {
	permit, err := x.Permit(ctx, x.Database, repo.Table{}, repo.PartitionLimits())
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return do(permit.Permit)
}
