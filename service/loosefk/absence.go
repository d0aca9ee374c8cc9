package loosefk

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// A child table that is in no configured database is absent. Perhaps it was never there; perhaps a database is missing
// from the configuration, and then its rows would be orphaned for good if the records of their parents went. So absent
// children hold the records of their parents until the table is found, or somebody accepts that there is none
// (`caretaker lfk accept-absent`). Of an accepted one the definitions are skipped, until a run finds the table.

// absentTold is how many absent children a message names.
const absentTold = 5

// absentWords name absent children and say what to do about them.
func absentWords(children []string) string {
	told, more, which := children, "", strings.Join(children, " ")
	if len(children) > absentTold {
		told, more, which = children[:absentTold], fmt.Sprintf(" and %d more", len(children)-absentTold), "--all"
	}
	return "no configured database has their child tables " + strings.Join(told, ", ") + more +
		"; configure the database that has them, or, if there is none, run caretaker lfk accept-absent " + which
}

// acceptedAbsent are the children that were accepted as absent.
func (k *looseForeignKeys) acceptedAbsent(ctx context.Context) (map[string]bool, error) {
	children, err := k.Main.AbsentChildren(ctx)
	accepted := make(map[string]bool, len(children))
	for _, c := range children {
		accepted[c.Child] = true
	}
	return accepted, err
}

// endAbsence ends the acceptance of children that a run has found.
func (k *looseForeignKeys) endAbsence(ctx context.Context, x *run.Execution, found []string) error {
	if len(found) == 0 || x.DryRun {
		return nil
	}
	if err := k.Main.EndAbsence(ctx, found); err != nil {
		return err
	}
	x.Log.InfoContext(ctx, "child tables found that were accepted as absent, they are cleaned again",
		"children", strings.Join(found, ", "))
	return nil
}

// noteAbsent keeps the children that hold records, for the worker's status, and warns of each once.
func (k *looseForeignKeys) noteAbsent(ctx context.Context, x *run.Execution, absent []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.absent
	k.absent, k.looked = absent, true
	if fresh := without(absent, known); len(fresh) > 0 {
		x.Log.WarnContext(ctx, "no configured database has these child tables, records of their parents are held: "+
			"configure the database that has them, or accept that there is none with caretaker lfk accept-absent",
			"children", strings.Join(fresh, ", "))
	}
}

// without are the names that are not among some others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
}

// absentRemark is for the worker's status: the children that hold records and have not been accepted. The last run of this
// process knows them, for all databases; before its first it is those that the records of this database are held for.
func (k *looseForeignKeys) absentRemark(d *repo.Database, accepted map[string]bool, failing []repo.FailingRecord) []string {
	k.mu.Lock()
	looked, absent := k.looked, slices.Clone(k.absent)
	k.mu.Unlock()
	if !looked {
		absent = k.holders(failing)
	}
	absent = slices.DeleteFunc(absent, func(c string) bool { return accepted[c] })
	if len(absent) == 0 || looked && d != k.Main {
		return nil
	}
	return []string{"records are held, " + absentWords(absent)}
}

// stateAbsent stands for the SQLSTATE of the failure of records that are held for an absent child.
const stateAbsent = "absent"

// holding is why the records of a parent are put off that has absent children. It is no failure, and counts towards none.
func (p *plan) holding() *failure {
	return &failure{definition: p.absent[0].String(), sqlstate: stateAbsent}
}

// holders are the child tables that records are held for, by name.
func (k *looseForeignKeys) holders(failing []repo.FailingRecord) (children []string) {
	for _, key := range k.config.Definitions.Keys {
		if slices.ContainsFunc(failing, func(r repo.FailingRecord) bool {
			return r.SQLState == stateAbsent && r.Definition == key.String()
		}) {
			children = append(children, key.Table)
		}
	}
	slices.Sort(children)
	return slices.Compact(children)
}

// absentChildren are the tables that hold the records of a parent.
func (p *plan) absentChildren() (children []string) {
	for _, key := range p.absent {
		if !slices.Contains(children, key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}

// held are the records of a run that are held, and the absent children that hold them.
type held struct {
	mu       sync.Mutex
	records  int
	children []string
}

func (h *held) add(p *plan, records int) {
	if records == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records += records
	h.children = append(h.children, without(p.absentChildren(), h.children)...)
}

// tellHeld adds to the run's reason how many records are held, and why.
func (c *cleanup) tellHeld() {
	c.held.mu.Lock()
	defer c.held.mu.Unlock()
	if c.held.records == 0 {
		return
	}
	slices.Sort(c.held.children)
	words := fmt.Sprintf("%d records held, %s", c.held.records, absentWords(c.held.children))
	c.x.Report(func(r *run.Run) { r.Reason = strings.TrimPrefix(r.Reason+"; "+words, "; ") })
}

// WithoutHeld is the reason of a run without what [cleanup.tellHeld] has added: a status has its own remark about it, which
// knows what was accepted since.
func WithoutHeld(reason string) string {
	return regexp.MustCompile(`(^|; )\d+ records held, .*$`).ReplaceAllString(reason, "")
}

// defined are the parents with definitions: one all of whose children are accepted as absent counts as one without.
func (k *looseForeignKeys) defined(accepted map[string]bool) map[string]bool {
	parents := map[string]bool{}
	for _, key := range k.config.Definitions.Keys {
		if !accepted[key.Table] {
			parents[key.Parent] = true
		}
	}
	return parents
}
