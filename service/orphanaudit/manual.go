package orphanaudit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
)

// Search is a look for orphans by hand.
type Search struct {
	Audit
	// Which selects tasks; nil: all.
	Which func(*Task) bool
	// After is the key behind which one task begins; the zero key: at the beginning.
	After repo.Key
	// Limit is how many orphaned keys are looked for in all.
	Limit int
	// Fix writes records; nil: orphans are only counted.
	Fix *Fixing
	// LeftOut are the selected definitions whose child Run does not find, with the reasons. Children that
	// were accepted as absent are not among them.
	LeftOut []string
}

// Found is what was found of one definition in one database.
type Found struct {
	Definition string `json:"definition"`
	Database   string `json:"database"`
	// Examined are the keys looked at, Keys those without a parent, Rows the rows that refer to these.
	Examined int64 `json:"examined"`
	Keys     int64 `json:"keys"`
	Rows     int64 `json:"rows"`
	// AtLeast: there may be more of them.
	AtLeast bool `json:"at_least"`
	// Queued are the records that were written.
	Queued int64 `json:"queued"`
	// After is where to go on; none if all was looked at.
	After []string `json:"after,omitempty"`
	// Fault says why it could not be looked at, or not to its end.
	Fault string `json:"fault,omitempty"`
	// Guess says why the keys may be other ones than those that were recorded; "": they are not.
	Guess string `json:"guess,omitempty"`
	// Key is the definition.
	Key repo.LooseForeignKey `json:"-"`
}

// ErrNoTask means that no definition is selected, or none has its child in a configured database.
var ErrNoTask = errors.New("no such definition with a child in a configured database")

// ErrAfter means that a search cannot begin where it was told to.
var ErrAfter = errors.New("--after cannot be used so")

// errLate: the records of a page could not be written.
var errLate = errors.New("older transactions are open: try again when they have ended")

// pageKeys is how many keys one statement of a search looks at.
const pageKeys = 1000

// Run looks at the selected tasks, one after the other. What has been found until ctx ends is in the
// result; an error means that nothing could be looked at.
func (s *Search) Run(ctx context.Context) (found []Found, err error) {
	if s.Fix != nil {
		if err := s.Fix.held(ctx); err != nil {
			return nil, err
		}
	}
	tasks, err := s.Tasks(ctx)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(tasks)
	tasks = slices.DeleteFunc(tasks, func(t *Task) bool { return s.Which != nil && !s.Which(t) })
	if err := s.leaveOut(ctx, all); err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return nil, noTask(all, s.LeftOut)
	}
	if err := s.checkAfter(ctx, tasks); err != nil {
		return nil, err
	}
	left := s.Limit
	for _, t := range tasks {
		f := Found{
			Definition: t.Name(), Database: t.Database(), Fault: t.faultOf(s.Fix != nil), Key: t.Key,
			Guess: t.guess(),
		}
		if f.Fault == "" {
			if err := s.task(ctx, t, &f, &left); err != nil {
				f.Fault, f.AtLeast = err.Error(), true
			}
		}
		found = append(found, f)
	}
	return found, nil
}

// leaveOut sets LeftOut.
func (s *Search) leaveOut(ctx context.Context, tasks []*Task) error {
	accepted, err := s.Databases[0].AbsentChildren(ctx)
	if err != nil {
		return err
	}
	var keys []repo.LooseForeignKey
	var children []string
	for _, key := range s.Keys {
		if !slices.ContainsFunc(tasks, func(t *Task) bool { return t.Key.Table == key.Table }) &&
			!slices.ContainsFunc(accepted, func(c repo.AbsentChild) bool { return c.Child == key.Table }) &&
			(s.Which == nil || s.Which(&Task{Key: key})) {
			keys, children = append(keys, key), append(children, key.Table)
		}
	}
	others, err := repo.NotTables(ctx, s.Databases, children)
	for _, key := range keys {
		s.LeftOut = append(s.LeftOut, fmt.Sprintf("%s (%s)", key,
			cmp.Or(others[key.Table], key.Table+" is in no configured database")))
	}
	return err
}

// checkAfter refuses a beginning that is not of one task: another one would pass its own keys over.
func (s *Search) checkAfter(ctx context.Context, tasks []*Task) error {
	var zero repo.Key
	switch t := tasks[0]; {
	case s.After == zero:
	case len(tasks) > 1:
		names := make([]string, len(tasks))
		for i, t := range tasks {
			names[i] = t.Name() + " on " + t.Database()
		}
		return fmt.Errorf("%w: it would be of %s: choose one with --parent and --database", ErrAfter,
			strings.Join(names, ", "))
	case s.After.Columns() != len(t.Key.Columns):
		return fmt.Errorf("%w: %s: give --after once for each column, in this order: %s", ErrAfter,
			t.Name(), strings.Join(t.Key.Columns, ", "))
	case t.Fault == "":
		_, err := t.child.Referred(ctx, s.After, 1, limits())
		if of, ok := errors.AsType[*repo.Error](err); ok && strings.HasPrefix(of.SQLState, "22") {
			return fmt.Errorf("%w: no value of %s: %w", ErrAfter, t.Name(), err)
		}
		return err
	}
	return nil
}

// maxNamed is how many definitions an error names.
const maxNamed = 10

// noTask says why what was selected is left out, or else what can be selected.
func noTask(tasks []*Task, leftOut []string) error {
	switch {
	case len(leftOut) > 0:
		return fmt.Errorf("%w: %s", ErrNoTask, strings.Join(leftOut[:min(len(leftOut), maxNamed)], ", "))
	case len(tasks) == 0:
		return ErrNoTask
	}
	var names []string
	for _, t := range tasks[:min(len(tasks), maxNamed)] {
		names = append(names, t.Name()+" on "+t.Database())
	}
	if more := len(tasks) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w: there are %s", ErrNoTask, strings.Join(names, ", "))
}

// record writes the records of a page's orphans.
func (s *Search) record(ctx context.Context, t *Task, f *Found, p Page) error {
	n, late, err := t.Record(ctx, p, func(do func(repo.Permit) error) error {
		return s.Fix.Permitted(ctx, t.Home(), do)
	})
	f.Queued += n
	if err == nil && late {
		err = errLate
	}
	return err
}

// task looks at one task until its end, or until nothing is left of the limit.
func (s *Search) task(ctx context.Context, t *Task, f *Found, left *int) error {
	after := s.After
	for ctx.Err() == nil && *left > 0 {
		page, err := t.Look(ctx, after, pageKeys, *left)
		if err == nil && s.Fix != nil && len(page.Orphans) > 0 {
			err = s.record(ctx, t, f, page)
		}
		if err != nil {
			f.After = after.Values()
			return err
		}
		f.Examined += int64(len(page.Keys))
		f.Keys += int64(len(page.Orphans))
		f.Rows += page.Rows
		f.AtLeast = f.AtLeast || page.AtLeast
		if *left -= len(page.Orphans); !page.More {
			return nil
		}
		after = page.Keys[len(page.Keys)-1]
	}
	f.AtLeast, f.After = true, append([]string{}, after.Values()...)
	return nil
}
