package lfk

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// childPlaces has the places of the children, as far as known at the start of a run.
type childPlaces struct {
	// found are the children by database, the queue's own last, and by number of the definition.
	found [][]*lfk.Child
	// silent are the databases that do not answer.
	silent  []silentDatabase
	dropped DroppedChildren
}

// silentDatabase is a database whose tables are unknown.
type silentDatabase struct {
	name string
	// why its tables are unknown.
	why error
	// had are the children at its last answer to a run. nil means it never answered.
	had *lfk.SeenChildren
}

// unknown returns the tasks of the i-th definition that this run cannot do. It returns one for each
// silent database that may have the child, and at least one for a child that no other database has.
func (h childPlaces) unknown(key lfk.Definition, i int) (tasks []*childTask) {
	others := 0
	for _, children := range h.found {
		if children[i] != nil {
			others++
		}
	}
	for _, s := range h.silent {
		if s.had.MayHave(key.Table) {
			tasks = append(tasks, &childTask{key: key, database: s.name, down: s.why})
		}
	}
	if len(tasks)+others == 0 && len(h.silent) > 0 {
		tasks = append(tasks, &childTask{key: key, database: h.silent[0].name, down: h.silent[0].why})
	}
	return tasks
}

// maxSearches is the number of databases queried in parallel for their children.
const maxSearches = 8

// findChildren searches every configured database for the children. A child is absent only if all
// databases answer.
func (k *worker) findChildren(
	ctx context.Context, x *run.Execution, keys []lfk.Definition,
) (h childPlaces, _ error) {
	h.dropped = DroppedChildren{}
	found, errs := make([][]*lfk.Child, len(k.Databases)), make([]error, len(k.Databases))
	turns := make(chan struct{}, maxSearches)
	var wait sync.WaitGroup
	for i, d := range k.Databases {
		wait.Go(func() {
			turns <- struct{}{}
			found[i], errs[i] = d.Children.Children(ctx, keys)
			if errs[i] == nil && d != x.Database {
				// If its search_path leads to another queue, it leads to other tables too.
				_, errs[i] = d.Queue.DeletedRecordsShape(ctx)
			}
			<-turns
		})
	}
	wait.Wait()
	seen, err := k.Main.Children.SeenChildren(ctx)
	if err != nil {
		return h, err
	}
	var own []*lfk.Child
	for i, d := range k.Databases {
		switch err := errs[i]; {
		case err == nil && d == x.Database:
			own = found[i]
		case err == nil:
			h.found = append(h.found, found[i])
		case d != x.Database && isSecondName(err):
			// Its tables belong to the database with the other name.
			continue
		case d != x.Database && hidden(err):
			x.Log.WarnContext(ctx, "database unreachable, child tables not checked",
				"child_database", d.Name, "error", err)
			h.silent = append(h.silent, silentDatabase{d.Name, err, seen[d.Name]})
			continue
		default:
			return h, err
		}
		now := SeenIn(d.Name, keys, func(n int) bool { return found[i][n] != nil })
		dropped, err := droppedFrom(ctx, d, seen[d.Name], now)
		if d != x.Database && hidden(err) {
			h.silent = append(h.silent, silentDatabase{d.Name, err, seen[d.Name]})
			h.found = h.found[:len(h.found)-1]
			continue
		}
		if err != nil {
			return h, err
		}
		for _, child := range dropped {
			h.dropped[child] = append(h.dropped[child], d.Name)
		}
		now.Children = append(now.Children, dropped...)
		slices.Sort(now.Children)
		if err := k.remember(ctx, x, seen[d.Name], now); err != nil {
			return h, err
		}
	}
	h.found = append(h.found, own)
	return h, nil
}

// remember saves the children of a database for runs in which it does not answer, after a change or
// once an hour. All servers share the state, so a server that has just started has it. A dry run
// saves nothing.
func (k *worker) remember(
	ctx context.Context, x *run.Execution, before *lfk.SeenChildren, now lfk.SeenChildren,
) error {
	known := before != nil && before.Fresh && slices.Equal(before.Asked, now.Asked)
	if known {
		others := without(before.Children, now.Asked)
		known = slices.Equal(slices.Sorted(slices.Values(without(before.Children, others))), now.Children)
	}
	if known || x.DryRun {
		return nil
	}
	return k.Main.Children.SaveSeenChildren(ctx, now)
}

// SeenIn returns the children of a database, in order. has reports whether it has the i-th
// definition's.
func SeenIn(
	database string, keys []lfk.Definition, has func(i int) bool,
) lfk.SeenChildren {
	children, asked := []string{}, []string{}
	for n, key := range keys {
		asked = append(asked, key.Table)
		if has(n) {
			children = append(children, key.Table)
		}
	}
	slices.Sort(children)
	slices.Sort(asked)
	return lfk.SeenChildren{
		Database: database, Children: slices.Compact(children), Asked: slices.Compact(asked),
	}
}

// ended returns the acceptances of the i-th definition, whose child was found.
func (h childPlaces) ended(
	key lfk.Definition, i int, accepted Absences,
) (places []lfk.AbsentPlace) {
	for _, children := range h.found {
		if children[i] == nil {
			continue
		}
		for _, database := range []string{"", children[i].Database.Name} {
			if place := (lfk.AbsentPlace{Child: key.Table, Database: database}); accepted[place] {
				places = append(places, place)
			}
		}
	}
	return places
}

// isSecondName reports whether a configured name belongs to a database with another name.
func isSecondName(err error) bool {
	_, same := errors.AsType[*dberr.SameDatabaseError](err)
	return same
}

// hidden reports whether err means that the database's tables cannot be listed. The database does
// not answer, caretaker's role cannot read its application schema, or the search_path leads to
// another one.
func hidden(err error) bool {
	_, noSchema := errors.AsType[*dberr.NoSchemaError](err)
	_, moved := errors.AsType[*lfk.QueueMovedError](err)
	return noSchema || moved || errors.Is(err, dberr.ErrUnreachable)
}
