package lfk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// A child table that no configured database has is absent. Perhaps it never existed. Perhaps a
// database is missing from the configuration: without the records of their parents its rows would
// stay orphaned. So absent children hold the records of their parents until a run finds the table,
// or the operator accepts its absence (`caretaker lfk accept-absent`). A run skips the definitions
// of an accepted child until it finds the table.

// Absences are the places where children are accepted as absent.
type Absences map[lfk.AbsentPlace]bool

// AbsencesOf returns the places of accepted children.
func AbsencesOf(children []lfk.AbsentChild) Absences {
	all := make(Absences, len(children))
	for _, c := range children {
		all[c.AbsentPlace] = true
	}
	return all
}

// Everywhere reports whether a child was accepted as absent from all configured databases.
func (a Absences) Everywhere(child string) bool { return a[lfk.AbsentPlace{Child: child}] }

// on reports whether a child was accepted as gone from all of some databases.
func (a Absences) on(child string, databases []string) bool {
	return !slices.ContainsFunc(databases, func(d string) bool { return !a[lfk.AbsentPlace{Child: child, Database: d}] })
}

// acceptedAbsent returns the children that were accepted as absent.
func (k *worker) acceptedAbsent(ctx context.Context) (Absences, error) {
	children, err := k.Main.Children.AbsentChildren(ctx)
	return AbsencesOf(children), err
}

// endAbsence ends the acceptance of children that a run has found.
func (k *worker) endAbsence(
	ctx context.Context, x *run.Execution, found map[lfk.AbsentPlace]bool,
) error {
	if len(found) == 0 || x.DryRun {
		return nil
	}
	var places []lfk.AbsentPlace
	var names []string
	for place := range found {
		places, names = append(places, place), append(names, place.String())
	}
	if err := k.Main.Children.EndAbsence(ctx, places); err != nil {
		return err
	}
	slices.Sort(names)
	x.Log.InfoContext(ctx, "absent child tables found, acceptance ended",
		"children", strings.Join(names, ", "))
	return nil
}

// hasSearched reports whether a run of this process has searched for the children. Where no record
// is due, only the first run does.
func (k *worker) hasSearched() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.absent != nil
}

// recordAbsent keeps the children that hold records for the worker's status, with remarks on views
// and foreign tables, and warns of each child once.
func (k *worker) recordAbsent(
	ctx context.Context, x *run.Execution, absent []string, others map[string]string,
) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := slices.DeleteFunc(without(absent, k.absent), func(child string) bool { return k.dropped[child] != nil })
	k.absent, k.others = append([]string{}, absent...), others
	if len(fresh) > 0 {
		x.Log.WarnContext(ctx, "child tables not found, records held",
			"children", strings.Join(fresh, ", "),
			"command", "caretaker lfk accept-absent "+strings.Join(fresh, " "))
	}
}

// findSimilar finds hints about absent children. It reads the tables of the databases only if a child
// was not absent at the previous run.
func (k *worker) findSimilar(ctx context.Context, absent []string) {
	k.mu.Lock()
	known := slices.Collect(maps.Keys(k.similar))
	k.mu.Unlock()
	similar := map[string]string{}
	if len(without(absent, known)) > 0 {
		names := ReadTableNames(ctx, k.Databases)
		for _, child := range absent {
			similar[child] = names.Hint(child)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(similar) > 0 || len(absent) == 0 {
		k.similar = similar
	}
}

// without returns the names that are not among others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names),
		func(n string) bool { return slices.Contains(others, n) })
}

// maxAbsentNamed is the maximum number of absent children in a message.
const maxAbsentNamed = 5

// absentText names absent children, with what to do.
func (k *worker) absentText(children []string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var texts, none []string
	for _, child := range children {
		if text := k.others[child]; text != "" {
			texts = append(texts, text)
		} else if dropped := k.dropped[child]; dropped != nil {
			texts = append(texts, DroppedText(child, dropped))
		} else {
			none = append(none, child)
		}
	}
	if len(none) == 0 {
		return strings.Join(texts, "; ")
	}
	more, which := "", strings.Join(none, " ")
	if len(none) > maxAbsentNamed {
		none, more = none[:maxAbsentNamed], fmt.Sprintf(" and %d more", len(none)-maxAbsentNamed)
		which = "--all"
	}
	var named []string
	for _, child := range none {
		named = append(named, child+Parenthesized(k.similar[child]))
	}
	return strings.Join(append(texts, "no configured database has the child tables "+
		strings.Join(named, ", ")+more+": configure the database that contains the tables, or run `caretaker lfk "+
		"accept-absent "+which+"`"), "; ")
}

// stateAbsent replaces the SQLSTATE in failures of records that are held for an absent child.
const stateAbsent = "absent"

// holding returns why the records of a parent with absent children are postponed. It is no failure,
// and counts towards none.
func (p *parentTasks) holding() *failure {
	return &failure{definition: p.absent[0].String(), sqlstate: stateAbsent}
}

// absentChildren returns the tables that hold the records of a parent.
func (p *parentTasks) absentChildren() (children []string) {
	for _, key := range p.absent {
		if !slices.Contains(children, key.Table) {
			children = append(children, key.Table)
		}
	}
	return children
}
