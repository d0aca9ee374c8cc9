package group

import (
	"cmp"
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
)

// workerRun is one run of the worker.
type workerRun struct {
	*worker
	x      *run.Execution
	stores gitlab.GroupStores
	// due is the time of the run and the retention period. It decides which groups are due.
	due    gitlab.Adjournment
	groups []group
	// place finds a due group by its id.
	place map[int64]int
	// held are the groups held so far, by reason.
	held map[string]int
}

// group is a due group with its outcome.
type group struct {
	gitlab.DueGroup
	outcome outcome
	reason  string
	// queued: its job is waiting or running, or is expected to be. tried: that is known. Both are
	// set only for groups that others may be removed with.
	queued, tried bool
	// position among the due groups that are not skipped.
	position int
}

// outcome is the action for a marked group.
type outcome string

const (
	destruction outcome = "destruction"
	restored    outcome = "restored"
	held        outcome = "held"
	failed      outcome = "failed"
)

// decide reads all due groups and decides about each by itself.
func (r *workerRun) decide(ctx context.Context) error {
	r.place = map[int64]int{}
	for after := int64(0); ; {
		candidates, err := r.x.Database.Groups.GroupCandidates(ctx, r.stores, r.due, after, run.ReadLimits())
		if err != nil || len(candidates) == 0 {
			return err
		}
		for page := range slices.Chunk(candidates, r.config.BatchSize) {
			if over, err := r.over(); over || err != nil {
				return err
			}
			err := r.x.Batch(ctx, func(ctx context.Context) error { return r.decidePage(ctx, page) },
				attribute.String("maintenance.phase", "decide"), attribute.Int("maintenance.groups", len(page)))
			if err != nil {
				return err
			}
		}
		after = candidates[len(candidates)-1]
	}
}

// decidePage reads the groups of a page of ids in five statements, whatever its size. It decides
// on each due group and adds it to the run's groups.
func (r *workerRun) decidePage(ctx context.Context, page []int64) error {
	due, err := r.x.Database.Groups.DueGroups(ctx, r.stores, r.due, page, run.ReadLimits())
	for _, g := range due {
		outcome, reason := decideGroup(g)
		r.place[g.ID] = len(r.groups)
		r.groups = append(r.groups, group{DueGroup: g, outcome: outcome, reason: reason})
	}
	return err
}

// decideGroup returns the outcome of a marked group.
func decideGroup(g gitlab.DueGroup) (outcome, string) {
	switch {
	case g.Veto != nil && (!g.RemovalStarted || g.Veto.Reason == reasons.Cancelled):
		return held, g.Veto.Reason
	case g.RemovalStarted:
		return destruction, ""
	case g.UserID == nil:
		return held, reasons.DeletingUserMissing
	case g.Allowed:
		return destruction, ""
	case g.InProgress:
		return held, reasonDeletionInProgress
	}
	return restored, reasonRightsMissing
}

// covering returns the groups whose removal may include others: due ones to be destroyed, upper
// before lower.
func (r *workerRun) covering() (above []*group) {
	seen := map[int64]bool{}
	for i := range r.groups {
		g := &r.groups[i]
		g.Above = slices.DeleteFunc(g.Above, func(id int64) bool {
			place, due := r.place[id]
			return !due || r.groups[place].outcome != destruction
		})
		for _, id := range g.Above {
			if !seen[id] {
				seen[id] = true
				above = append(above, &r.groups[r.place[id]])
			}
		}
	}
	slices.SortFunc(above, func(a, b *group) int {
		return cmp.Or(cmp.Compare(len(a.Above), len(b.Above)), cmp.Compare(a.ID, b.ID))
	})
	return above
}

// skipped reports whether a group is removed with one above it.
func (r *workerRun) skipped(g *group) bool {
	return slices.ContainsFunc(g.Above, func(id int64) bool { return r.groups[r.place[id]].queued })
}

// expect assumes that the jobs of untried covering groups will be queued, and gives all groups
// their positions.
func (r *workerRun) expect(covering []*group) {
	for _, g := range covering {
		if !g.tried {
			g.queued = !r.skipped(g)
		}
	}
	position := 0
	for i := range r.groups {
		if g := &r.groups[i]; !r.skipped(g) {
			g.position = position
			position++
		}
	}
}

// Reasons of groups and of their jobs.
const (
	reasonDeletionInProgress = "DELETION_IN_PROGRESS"
	reasonNoLongerMarked     = "NO_LONGER_MARKED"
	reasonRightsMissing      = "RIGHTS_MISSING"
)
