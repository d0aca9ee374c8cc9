package lfk

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

// Deletions from a parent whose triggers are lost are not recorded, and its children stay: no
// record is due, and every run succeeds. So each server inspects the triggers of each database from
// time to time, when it reads the backlog, and judges them as lint does.

// maxInspectionAge is the maximum age of an inspection. A requested run ends its database's.
const maxInspectionAge = 10 * time.Minute

// inspections are the inspections of this process.
type inspections struct {
	// since is the start of the process.
	since time.Time

	mu sync.Mutex
	// of has the newest inspections, by database name.
	of map[string]inspection
}

// inspection is the result of an inspection of a database.
type inspection struct {
	at   time.Time
	keys []lfk.Definition
	seen admin.Inspection
	// warned is what was last logged about it.
	warned string
}

// isAbout reports whether the inspection used these definitions: a reload replaces all of them.
func (l inspection) isAbout(keys []lfk.Definition) bool {
	return len(l.keys) == len(keys) && (len(keys) == 0 || &l.keys[0] == &keys[0])
}

// forget makes the next reading of the backlog inspect a database again.
func (l *inspections) forget(d *repo.Database) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.of[d.Name]
	old.at = time.Time{}
	l.of[d.Name] = old
}

// renew inspects a database, unless its last inspection is recent.
func (l *inspections) renew(ctx context.Context, d *repo.Database, keys []lfk.Definition) error {
	l.mu.Lock()
	old := l.of[d.Name]
	l.mu.Unlock()
	if old.isAbout(keys) && time.Since(old.at) < maxInspectionAge {
		return nil
	}
	seen, err := admin.New(d.Database).InspectParents(ctx, keys)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[d.Name] = inspection{time.Now(), keys, seen, old.warned}
	return nil
}

// untracked returns the parents whose deletions a database does not record.
func (k *worker) untracked(
	ctx context.Context, d *repo.Database, accepted Absences,
) (parents []string, err error) {
	keys := k.LooseForeignKeys()
	if err := k.inspections.renew(ctx, d, keys); err != nil {
		return nil, err
	}
	k.inspections.mu.Lock()
	defer k.inspections.mu.Unlock()
	check := &Check{Keys: keys, Accepted: accepted}
	for _, other := range k.Databases {
		if l := k.inspections.of[other.Name]; l.isAbout(keys) {
			check.Seen = append(check.Seen, Inspected{other.Name, l.seen})
		}
	}
	// Soon after the start, a database that may have a child is only not inspected yet.
	check.Complete = len(check.Seen) == len(k.Databases) ||
		time.Since(k.inspections.since) < maxInspectionAge
	newest := k.inspections.of[d.Name]
	parents = check.Untracked(Inspected{d.Name, newest.seen})
	if names := strings.Join(parents, ", "); names != newest.warned {
		if newest.warned = names; names != "" {
			k.Logger.WarnContext(ctx, "parents not tracked", "worker", Name, "database", d.Name,
				"parents", format.List(parents))
		}
		k.inspections.of[d.Name] = newest
	}
	return parents, nil
}

// untrackedRemark names the parents whose deletions a database does not record.
func untrackedRemark(d *repo.Database, parents []string) []string {
	if len(parents) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("on %s, deletions from the parent tables %s are not recorded (to see why, run "+
		"`caretaker lfk lint`)", d.Name, format.List(parents))}
}
