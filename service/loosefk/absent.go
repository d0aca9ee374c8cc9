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

// ErrUnknownChild is a name that is none of those to choose from.
var ErrUnknownChild = errors.New("unknown child table")

// unknownChildError says which name that is, and where those to choose from are listed.
type unknownChildError string

// Error is the text.
func (e unknownChildError) Error() string { return string(e) }

// Is [ErrUnknownChild].
func (e unknownChildError) Is(target error) bool { return target == ErrUnknownChild }

// AcceptedChild is a child table that AcceptAbsent has accepted as absent.
type AcceptedChild struct {
	Child string `json:"child"`
	// Definitions that are skipped from now on.
	Definitions []string `json:"definitions"`
	// Before: it was accepted already.
	Before bool `json:"accepted_before"`
	// Databases that no longer have the table, if others have it: there its definitions hold no more records.
	Databases []string `json:"databases,omitempty"`
}

// AcceptAbsent accepts child tables as absent, or as gone from databases, or without names all that are and are
// not accepted yet. It needs an answer from every configured database, and accepts all of the tables or none.
func (l Admin) AcceptAbsent(
	ctx context.Context, children []string, by string,
) ([]AcceptedChild, error) {
	if l.Definitions == nil {
		return nil, errors.New("there are no definitions: set " +
			"workers.loose_foreign_keys_cleanup.definitions to their file")
	}
	homes, gone, err := l.childHomes(ctx)
	var others map[string]string
	if err == nil {
		others, err = repo.NotTables(ctx, l.Databases, l.Definitions.children())
	}
	if err != nil {
		return nil, fmt.Errorf("what is absent is known only if every configured database answers: %w",
			err)
	}
	known, err := l.AbsentChildren(ctx)
	if err != nil {
		return nil, err
	}
	accepted := absencesOf(known)
	definitions := map[string][]string{}
	for _, key := range l.Definitions.Keys {
		definitions[key.Table] = append(definitions[key.Table], key.String())
	}
	all := len(children) == 0
	if all {
		for child := range definitions {
			children = append(children, child)
		}
	}
	children = slices.Compact(slices.Sorted(slices.Values(children)))
	done, refused := []AcceptedChild{}, []error{}
	for _, child := range children {
		before := accepted.everywhere(child)
		switch in := homes[child]; {
		case len(in) > 0 && len(gone[child]) > 0:
			done = append(done, AcceptedChild{child, definitions[child], false, gone[child]})
		case all && (len(in) > 0 || before || others[child] != ""):
		case definitions[child] == nil:
			refused = append(refused, unknownChildError(
				"no definition has a child table "+child+": `caretaker lfk lint` lists those that are "+
					"child_missing"))
		case len(in) > 0:
			refused = append(refused, fmt.Errorf("%s is in %s, where its rows are cleaned: only a table "+
				"that is in no configured database can be accepted as absent",
				child, run.DatabaseNames(in)))
		case others[child] != "":
			refused = append(refused, errors.New(others[child]))
		default:
			done = append(done, AcceptedChild{child, definitions[child], before, nil})
		}
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return done, l.main().AcceptAbsent(ctx, placesOf(done), by)
}

// main has what all databases share.
func (l Admin) main() *repo.Database { return l.Databases[0] }

// absences are where children are accepted as absent.
type absences map[repo.AbsentPlace]bool

func absencesOf(children []repo.AbsentChild) absences {
	all := make(absences, len(children))
	for _, c := range children {
		all[c.AbsentPlace] = true
	}
	return all
}

// everywhere reports whether a child was accepted as one that no configured database has.
func (a absences) everywhere(child string) bool { return a[repo.AbsentPlace{Child: child}] }

// on reports whether a child was accepted as gone from all of some databases.
func (a absences) on(child string, databases []string) bool {
	return !slices.ContainsFunc(databases, func(d string) bool { return !a[repo.AbsentPlace{Child: child, Database: d}] })
}

// placesOf are where children are absent: on databases that no longer have them, or everywhere.
func placesOf(children []AcceptedChild) (places []repo.AbsentPlace) {
	for _, c := range children {
		for _, database := range c.Databases {
			places = append(places, repo.AbsentPlace{Child: c.Child, Database: database})
		}
		if c.Databases == nil {
			places = append(places, repo.AbsentPlace{Child: c.Child})
		}
	}
	return places
}

// childHomes are the databases that each child table is in, by its name, and those that it is gone from. All
// of them have to answer, and to show their application schema: to a role that may not use it everything in
// it seems absent.
func (l Admin) childHomes(
	ctx context.Context,
) (homes map[string][]*repo.Database, gone goneChildren, err error) {
	homes, gone = map[string][]*repo.Database{}, goneChildren{}
	var seen map[string]*repo.SeenChildren
	err = l.each(ctx, func(d *repo.Database) error {
		children, err := d.Children(ctx, l.Definitions.Keys)
		if err == nil && seen == nil {
			seen, err = l.main().SeenChildren(ctx)
		}
		if err != nil {
			return err
		}
		for _, c := range children {
			if c != nil && !slices.Contains(homes[c.Key.Table], d) {
				homes[c.Key.Table] = append(homes[c.Key.Table], d)
			}
		}
		now := seenIn(d.Name, l.Definitions.Keys, func(i int) bool { return children[i] != nil })
		return gone.add(ctx, d, seen[d.Name], now)
	})
	return homes, gone, err
}

// AbsentChildren are the child tables that were accepted as absent, by name.
func (l Admin) AbsentChildren(ctx context.Context) ([]repo.AbsentChild, error) {
	children := []repo.AbsentChild{}
	err := Admin{Databases: l.Databases[:1]}.each(ctx, func(main *repo.Database) error {
		accepted, err := main.AbsentChildren(ctx)
		children = append(children, accepted...)
		return err
	})
	return children, err
}

// RevokeAbsent ends the acceptance of child tables, all of them or none: until they are found or
// accepted again, they hold the records of their parents.
func (l Admin) RevokeAbsent(ctx context.Context, children []string) error {
	accepted, err := l.AbsentChildren(ctx)
	if err != nil {
		return err
	}
	var places []repo.AbsentPlace
	var refused []error
	for _, child := range children {
		known := len(places)
		for _, c := range accepted {
			if c.Child == child {
				places = append(places, c.AbsentPlace)
			}
		}
		if len(places) == known {
			refused = append(refused, unknownChildError(
				child+" is not accepted as absent: `caretaker lfk accept-absent --list` lists those that are"))
		}
	}
	if len(refused) > 0 {
		return errors.Join(refused...)
	}
	return l.main().EndAbsence(ctx, places)
}

// A child table that is in no configured database is absent. Perhaps it was never there; perhaps a
// database is missing from the configuration, and then its rows would be orphaned for good if the
// records of their parents went. So absent children hold the records of their parents until the
// table is found, or the operator accepts that there is none (`caretaker lfk accept-absent`). Of an
// accepted one the definitions are skipped, until a run finds the table.

// acceptedAbsent are the children that were accepted as absent.
func (k *looseForeignKeys) acceptedAbsent(ctx context.Context) (absences, error) {
	children, err := k.Main.AbsentChildren(ctx)
	return absencesOf(children), err
}

// endAbsence ends the acceptance of children that a run has found.
func (k *looseForeignKeys) endAbsence(
	ctx context.Context, x *run.Execution, found map[repo.AbsentPlace]bool,
) error {
	if len(found) == 0 || x.DryRun {
		return nil
	}
	var places []repo.AbsentPlace
	var names []string
	for place := range found {
		places, names = append(places, place), append(names, place.String())
	}
	if err := k.Main.EndAbsence(ctx, places); err != nil {
		return err
	}
	slices.Sort(names)
	x.Log.InfoContext(ctx, "child tables found that were accepted as absent, they are cleaned again",
		"children", strings.Join(names, ", "))
	return nil
}

// hasLooked reports whether a run of this process has looked for the children. Where nothing is due,
// only the first run does.
func (k *looseForeignKeys) hasLooked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.absent != nil
}

// recordAbsent keeps the children that hold records, for the worker's status, with what is said of
// those that are views or foreign tables, and warns of each child once.
func (k *looseForeignKeys) recordAbsent(
	ctx context.Context, x *run.Execution, absent []string, others map[string]string,
) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := slices.DeleteFunc(without(absent, k.absent), func(child string) bool { return k.gone[child] != nil })
	k.absent, k.others = append([]string{}, absent...), others
	if len(fresh) > 0 {
		x.Log.WarnContext(ctx, "no configured database has these child tables, records of their "+
			"parents are held: "+
			"configure the database that has them, or accept that there is none with caretaker lfk "+
			"accept-absent; name the table below a view in the definition",
			"children", strings.Join(fresh, ", "))
	}
}

// without are the names that are not among some others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names),
		func(n string) bool { return slices.Contains(others, n) })
}

// maxAbsentNamed is how many absent children a message names.
const maxAbsentNamed = 5

// absentText names absent children and says what to do about them.
func (k *looseForeignKeys) absentText(children []string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var texts, none []string
	for _, child := range children {
		if text := k.others[child]; text != "" {
			texts = append(texts, text)
		} else if gone := k.gone[child]; gone != nil {
			texts = append(texts, goneText(child, gone))
		} else {
			none = append(none, child)
		}
	}
	if len(none) == 0 {
		return strings.Join(texts, "; ")
	}
	named, more, which := none, "", strings.Join(none, " ")
	if len(none) > maxAbsentNamed {
		named, more = none[:maxAbsentNamed], fmt.Sprintf(" and %d more", len(none)-maxAbsentNamed)
		which = "--all"
	}
	return strings.Join(append(texts, "no configured database has their child tables "+
		strings.Join(named, ", ")+more+"; configure the database that has them, or, if there is none, "+
		"run caretaker lfk accept-absent "+which), "; ")
}

// stateAbsent stands for the SQLSTATE of the failure of records that are held for an absent child.
const stateAbsent = "absent"

// holding is why the records of a parent are postponed that has absent children. It is no failure,
// and counts towards none.
func (p *parentTasks) holding() *failure {
	return &failure{definition: p.absent[0].String(), sqlstate: stateAbsent}
}

// absentChildren are the tables that hold the records of a parent.
func (p *parentTasks) absentChildren() (children []string) {
	for _, key := range p.absent {
		if !slices.Contains(children, key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}
