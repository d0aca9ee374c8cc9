package orphans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Search is a manual search for orphans.
type Search struct {
	Audit
	// Which selects tasks. nil means all.
	Which func(*Task) bool
	// Limit is the maximum number of orphaned keys to find in all.
	Limit int
	// Fix writes records. nil means orphans are only counted.
	Fix *Repair
	// LeftOut are the selected definitions whose child Run does not find, with the reasons. It does
	// not include children accepted as absent.
	LeftOut []string
	// Progress shows the search, as text for people. nil means nothing.
	Progress func(format string, args ...any)
}

// Found is the result for one definition in one database.
type Found struct {
	Definition string `json:"definition"`
	Database   string `json:"database"`
	// Examined is the number of keys checked, Keys of those without a parent, Rows of the rows with
	// such a key.
	Examined int64 `json:"examined"`
	Keys     int64 `json:"keys"`
	Rows     int64 `json:"rows"`
	// AtLeast: there may be more of them.
	AtLeast bool `json:"at_least"`
	// Queued is the number of records written.
	Queued int64 `json:"queued"`
	// More: the search did not reach its end.
	More bool `json:"more"`
	// Fault is why it was not searched, or not to its end.
	Fault string `json:"fault,omitempty"`
	// Guess is why the keys may differ from the recorded ones. "" means they do not.
	Guess string `json:"guess,omitempty"`
	// Key is the definition.
	Key lfk.Definition `json:"-"`
}

// ErrNoTask means that no definition matches the selection, or that no configured database has a child table.
var ErrNoTask = errors.New("no definition to search")

// noTaskError explains [ErrNoTask].
type noTaskError string

func (e noTaskError) Error() string { return string(e) }

func (noTaskError) Is(target error) bool { return target == ErrNoTask }

// errLate: the records of a page could not be written.
var errLate = errors.New("older transactions are open: try again after these transactions have ended")

// pageKeys is the number of keys that one statement of a search checks.
const pageKeys = 1000

// Run searches the selected tasks, one after the other. The result has the findings until ctx ends.
// An error means that no task could be searched.
func (s *Search) Run(ctx context.Context) (found []Found, err error) {
	if s.Fix != nil {
		if err := s.Fix.held(ctx); err != nil {
			return nil, err
		}
	}
	s.progress("inspecting %s", format.Pluralize(len(s.Keys), "definition"))
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
	left := s.Limit
	for i, t := range tasks {
		f := Found{
			Definition: t.Name(), Database: t.Database(), Fault: t.faultOf(s.Fix != nil), Key: t.Key,
			Guess: t.guess(),
		}
		if f.Fault == "" {
			seen := func() {
				s.progress("%s on %s (%d of %d): %s checked, %s without a parent", f.Definition, f.Database, i+1,
					len(tasks), format.Pluralize(f.Examined, "key"), format.Number(f.Keys))
			}
			if err := s.task(ctx, t, &f, &left, seen); err != nil {
				f.Fault, f.AtLeast, f.More = err.Error(), true, true
			}
		}
		found = append(found, f)
	}
	return found, nil
}

// progress shows the search.
func (s *Search) progress(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(format, args...)
	}
}

// leaveOut sets LeftOut.
func (s *Search) leaveOut(ctx context.Context, tasks []*Task) error {
	accepted, err := s.Databases[0].Children.AbsentChildren(ctx)
	if err != nil {
		return err
	}
	var keys []lfk.Definition
	var children []string
	for _, key := range s.Keys {
		if !slices.ContainsFunc(tasks, func(t *Task) bool { return t.Key.Table == key.Table }) &&
			!slices.ContainsFunc(accepted, func(c lfk.AbsentChild) bool { return c.Child == key.Table }) &&
			(s.Which == nil || s.Which(&Task{Key: key})) {
			keys, children = append(keys, key), append(children, key.Table)
		}
	}
	others, err := lfk.NotTables(ctx, repo.Kernels(s.Databases), children)
	for _, key := range keys {
		s.LeftOut = append(s.LeftOut, fmt.Sprintf("%s (%s)", key,
			cmp.Or(others[key.Table], key.Table+" is not in any configured database")))
	}
	return err
}

// maxNamed is the maximum number of definitions in an error.
const maxNamed = 10

// noTask returns why the selection is left out, or else what can be selected.
func noTask(tasks []*Task, omitted []string) error {
	switch {
	case len(omitted) > 0:
		return noTaskError("cannot search " + strings.Join(omitted[:min(len(omitted), maxNamed)], ", "))
	case len(tasks) == 0:
		return noTaskError("no configured database contains a child table of the definitions")
	}
	var names []string
	for _, t := range tasks[:min(len(tasks), maxNamed)] {
		names = append(names, t.Name()+" on "+t.Database())
	}
	if more := len(tasks) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return noTaskError("no definition matches: choose from " + strings.Join(names, ", "))
}

// task searches one task to its end, or until the limit is reached. It calls seen before each page.
func (s *Search) task(ctx context.Context, t *Task, f *Found, left *int, seen func()) error {
	var after lfk.Key
	for ctx.Err() == nil && *left > 0 {
		seen()
		page, err := t.Scan(ctx, after, pageKeys, *left)
		if err != nil {
			return err
		}
		if s.Fix != nil && len(page.Orphans) > 0 {
			n, late, err := t.Record(ctx, page, func(do func(fencing.Permit) error) error {
				return s.Fix.WithPermit(ctx, t.QueueDatabase(), do)
			})
			if f.Queued += n; err != nil || late {
				return cmp.Or(err, errLate)
			}
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
	f.AtLeast, f.More = true, true
	return nil
}
