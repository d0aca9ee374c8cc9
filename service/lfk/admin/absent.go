package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrUnknownChild means that a name is not among the possible child tables.
var ErrUnknownChild = errors.New("unknown child")

// unknownChild is the error for a child that is not among the possible ones, which lists names.
func unknownChild(child, text string) error {
	return fault.Unknown(ErrUnknownChild, "child", child, text)
}

// notAbsent is the error for a child that cannot be accepted as absent.
func notAbsent(child, text string) error {
	return &fault.RefusedError{
		Reason: "CHILD_NOT_ABSENT", Text: text, Metadata: map[string]string{"child": child},
	}
}

// AcceptedChild is a child table that AcceptAbsent has accepted as absent.
type AcceptedChild struct {
	Child string `json:"child"`
	// Definitions that runs skip from now on.
	Definitions []string `json:"definitions"`
	// Before reports that it was already accepted.
	Before bool `json:"accepted_before"`
	// Databases without the table, if others have it: there its definitions hold no records.
	Databases []string `json:"databases,omitempty"`
}

// AcceptAbsent accepts child tables as absent, or as gone from databases. Without names it accepts
// all that are absent or gone and not accepted yet. It requires an answer from every configured
// database, and accepts all of the tables or none.
func (l Admin) AcceptAbsent(
	ctx context.Context, children []string, by string,
) ([]AcceptedChild, error) {
	if l.Definitions == nil {
		return nil, errors.New("no definitions file configured: set workers.loose_foreign_keys_cleanup.definitions to the " +
			"definitions file")
	}
	databases, dropped, err := l.childDatabases(ctx)
	var others map[string]string
	if err == nil {
		others, err = lfkrepo.NotTables(ctx, repo.Kernels(l.Databases), l.childTables())
	}
	if err != nil {
		return nil, fmt.Errorf("cannot check which tables are absent: %w", err)
	}
	known, err := l.AbsentChildren(ctx)
	if err != nil {
		return nil, err
	}
	accepted := lfk.AbsencesOf(known)
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
		before := accepted.Everywhere(child)
		switch in := databases[child]; {
		case len(in) > 0 && len(dropped[child]) > 0:
			done = append(done, AcceptedChild{child, definitions[child], false, dropped[child]})
		case all && (len(in) > 0 || before || others[child] != ""):
		case definitions[child] == nil:
			refused = append(refused, unknownChild(child,
				"no definition has the child table "+child+": run `caretaker lfk lint` to list the "+
					"missing child tables"))
		case len(in) > 0:
			refused = append(refused, notAbsent(child, fmt.Sprintf("%s cannot be accepted as absent, because "+
				"the table exists in %s",
				child, run.DatabaseNames(in))))
		case others[child] != "":
			refused = append(refused, notAbsent(child, others[child]))
		default:
			done = append(done, AcceptedChild{child, definitions[child], before, nil})
		}
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return done, l.Databases[0].Children.AcceptAbsent(ctx, placesOf(done), by)
}

// childTables returns the child tables of the definitions, with repetitions.
func (l Admin) childTables() (names []string) {
	for _, k := range l.Definitions.Keys {
		names = append(names, k.Table)
	}
	return names
}

// placesOf returns where children are absent: on databases that no longer have them, or everywhere.
func placesOf(children []AcceptedChild) (places []lfkrepo.AbsentPlace) {
	for _, c := range children {
		for _, database := range c.Databases {
			places = append(places, lfkrepo.AbsentPlace{Child: c.Child, Database: database})
		}
		if c.Databases == nil {
			places = append(places, lfkrepo.AbsentPlace{Child: c.Child})
		}
	}
	return places
}

// childDatabases returns the databases of each child table, by its name, and those that it is gone
// from. All databases must answer, and show their application schema: without USAGE on it,
// everything in it seems absent.
func (l Admin) childDatabases(
	ctx context.Context,
) (databases map[string][]*repo.Database, dropped lfk.DroppedChildren, err error) {
	databases, dropped = map[string][]*repo.Database{}, lfk.DroppedChildren{}
	var seen map[string]*lfkrepo.SeenChildren
	err = l.each(ctx, func(d *repo.Database) error {
		children, err := d.Children.Children(ctx, l.Definitions.Keys)
		if err == nil && seen == nil {
			seen, err = l.Databases[0].Children.SeenChildren(ctx)
		}
		if err != nil {
			return err
		}
		for _, c := range children {
			if c != nil && !slices.Contains(databases[c.Key.Table], d) {
				databases[c.Key.Table] = append(databases[c.Key.Table], d)
			}
		}
		now := lfk.SeenIn(d.Name, l.Definitions.Keys, func(i int) bool { return children[i] != nil })
		return dropped.Add(ctx, d, seen[d.Name], now)
	})
	return databases, dropped, err
}

// AbsentChildren returns the child tables that were accepted as absent, by name.
func (l Admin) AbsentChildren(ctx context.Context) ([]lfkrepo.AbsentChild, error) {
	children := []lfkrepo.AbsentChild{}
	err := Admin{Databases: l.Databases[:1]}.each(ctx, func(main *repo.Database) error {
		accepted, err := main.Children.AbsentChildren(ctx)
		children = append(children, accepted...)
		return err
	})
	return children, err
}

// RevokeAbsent ends the acceptance of child tables, all of them or none. Until they are found or
// accepted again, they hold the records of their parents.
func (l Admin) RevokeAbsent(ctx context.Context, children []string) error {
	accepted, err := l.AbsentChildren(ctx)
	if err != nil {
		return err
	}
	var places []lfkrepo.AbsentPlace
	var refused []error
	for _, child := range children {
		known := len(places)
		for _, c := range accepted {
			if c.Child == child {
				places = append(places, c.AbsentPlace)
			}
		}
		if len(places) == known {
			refused = append(refused, unknownChild(child,
				child+" is not accepted as absent: run `caretaker lfk accept-absent --list` to "+
					"list the child tables accepted as absent"))
		}
	}
	if len(refused) > 0 {
		return errors.Join(refused...)
	}
	return l.Databases[0].Children.EndAbsence(ctx, places)
}
