package loosefk

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Rotations: which databases a fire works.
const (
	// RotationMinute is one database a fire, that of its minute.
	RotationMinute = "minute"
	// RotationAll is every database that has records due, one after the other.
	RotationAll = "all"
)

// due says whether records of parents with definitions are due in a database. One that cannot be asked, or whose queue is
// in disorder, counts as one that has some: its run mends it, or says what is wrong.
func (k *looseForeignKeys) due(ctx context.Context, d *repo.Database) bool {
	if k.config.Definitions == nil {
		return false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, run.DuePatience, repo.ErrUnreachable)
	defer cancel()
	queue, err := d.Queue(ctx)
	switch {
	case err != nil:
		return true
	case !queue.Exists:
		return false
	case !queue.Partitioned, queue.Managed && queue.ActiveMissing():
		return true
	}
	recorded, err := d.DueParents(ctx, queue, run.ReadLimits())
	if err != nil {
		return true
	}
	accepted, err := k.acceptedAbsent(ctx)
	defined := k.defined(accepted)
	return err != nil || slices.ContainsFunc(recorded, func(name string) bool {
		parent, ours := strings.CutPrefix(name, queue.Schema+".")
		return ours && defined[parent]
	})
}

// starvedDatabases are those of n databases that have no turn within 24 hours from a fire of a schedule: of five
// fields, UTC. The day from the first fire shows every minute of the day in which it fires, and 24 hours are a multiple
// of n minutes. An invalid schedule starves none here: [New] refuses it.
func starvedDatabases(expression string, n int) []int {
	schedule, err := run.ParseSchedule(expression)
	if err != nil {
		return nil
	}
	turns := make([]bool, n)
	first := schedule.Next(time.Unix(0, 0).UTC())
	for at := first; !at.IsZero() && at.Before(first.Add(24*time.Hour)); at = schedule.Next(at) {
		turns[run.Rotation(at, n)] = true
	}
	var starved []int
	for i, had := range turns {
		if !had {
			starved = append(starved, i)
		}
	}
	return starved
}
