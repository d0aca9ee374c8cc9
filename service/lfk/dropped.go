package lfk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// A child table that a database no longer has may have been renamed, moved to another schema or
// dropped. Only a dropped table needs no cleaning. So a gone child holds the records of its parents
// like an absent one, even if another database has a table of that name. It does so until a run
// finds it there again, or the operator accepts that it is gone. It also ends when GitLab has
// write-protected it because its rows are elsewhere.

// DroppedChildren maps the name of a child to the databases that no longer have it.
type DroppedChildren map[string][]string

// Add adds the children that a database no longer has.
func (g DroppedChildren) Add(
	ctx context.Context, d *repo.Database, before *lfk.SeenChildren, now lfk.SeenChildren,
) error {
	dropped, err := droppedFrom(ctx, d, before, now)
	for _, child := range dropped {
		g[child] = append(g[child], d.Name)
	}
	return err
}

// droppedFrom returns the children that a database had before and no longer has.
func droppedFrom(
	ctx context.Context, d *repo.Database, before *lfk.SeenChildren, now lfk.SeenChildren,
) ([]string, error) {
	if before == nil {
		return nil, nil
	}
	dropped := slices.DeleteFunc(slices.Clone(now.Asked), func(child string) bool {
		return slices.Contains(now.Children, child) || !slices.Contains(before.Children, child)
	})
	if len(dropped) == 0 {
		return nil, nil
	}
	leftovers, err := d.Children.Leftovers(ctx, dropped)
	return without(dropped, leftovers), err
}

// DroppedText names the databases that no longer have a child, and what to do.
func DroppedText(child string, databases []string) string {
	return fmt.Sprintf("%s no longer has the child table %s: if the table was dropped, run `caretaker lfk accept-absent "+
		"%s`. If the table was renamed or moved, correct the definition or undo the change",
		strings.Join(databases, ", "), child, format.Argument(child))
}

// recordDropped warns of children that are gone from databases, of each once until a run finds the
// table there again. The gone children of a silent database stay known.
func (k *worker) recordDropped(ctx context.Context, x *run.Execution, h childPlaces) {
	k.mu.Lock()
	defer k.mu.Unlock()
	dropped := maps.Clone(h.dropped)
	for child, databases := range k.dropped {
		for _, s := range h.silent {
			if slices.Contains(databases, s.name) {
				dropped[child] = append(slices.Clone(dropped[child]), s.name)
			}
		}
	}
	var fresh []string
	for child, databases := range dropped {
		if more := without(databases, k.dropped[child]); len(more) > 0 {
			fresh = append(fresh, DroppedText(child, more))
		}
	}
	k.dropped = dropped
	if slices.Sort(fresh); len(fresh) > 0 {
		x.Log.WarnContext(ctx, "child tables no longer found, records held", "children", strings.Join(fresh, "; "))
	}
}
