package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// Adoption turns a real foreign key into a loose one, and back. The order of its steps ensures that
// rows without a parent are cleaned at any time. Before the constraint is dropped, the definition
// exists, every server knows it and deletions are recorded. Before the definition is removed, the
// constraint exists and all rows are checked. While both exist, the constraint acts first and the
// worker finds no rows. After any interruption, the same command continues: each step checks
// whether it is done.
//
// The run is the last line of defence. It skips the records of a parent while the definition of an
// adopted key is missing (package lfk, adopted.go).

// Step is a step of an adoption or a reversion.
type Step struct {
	// Text describes the step.
	Text string `json:"step"`
	// SQL of the step, or lines of the definitions file.
	SQL []string `json:"sql,omitempty"`
	// Done: no change is required.
	Done bool `json:"done"`
	// Shared: the operator does the step once for all foreign keys of a command.
	Shared bool `json:"-"`
}

// BeforeDrop is what the operator must do between the first steps of an adoption and the last.
const BeforeDrop = "send SIGHUP to every server to load the definition, and grant the server's role the privileges " +
	"that `caretaker doctor --grants --role ROLE` prints"

// Adoption is a foreign key with its completed and remaining steps.
type Adoption struct {
	Database   string `json:"database"`
	Definition string `json:"definition"`
	Constraint string `json:"constraint"`
	Steps      []Step `json:"steps"`
	// Warnings are the differences between the loose foreign key and the constraint.
	Warnings []string `json:"warnings,omitempty"`

	admin    Admin
	at       admin.Admin
	database *repo.Database
	real     admin.RealKey
	key      lfkrepo.Definition
	holder   string
	// defined: the definition is in the file.
	defined bool
	// Tracked: the parent is tracked. Finish updates it.
	Tracked bool `json:"-"`
}

// Dropped reports whether the constraint no longer exists.
func (a *Adoption) Dropped() bool { return a.real.OID == 0 }

// Ready reports whether the definition was in the file at the start of the command.
func (a *Adoption) Ready() bool { return a.defined }

// PlanAdoption returns the steps that make a foreign key a loose one, or why that is impossible. It
// changes nothing.
func (l Admin) PlanAdoption(ctx context.Context, r AdoptRequest) (*Adoption, error) {
	allowed := []string{"", lfkrepo.AsyncDelete, lfkrepo.AsyncNullify}
	if !slices.Contains(allowed, r.OnDelete) {
		return nil, fmt.Errorf("%w %s: use %s", ErrUnknownAction, r.OnDelete, strings.Join(allowed[1:], " or "))
	}
	a, err := l.find(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := a.define(r.OnDelete); err != nil {
		return nil, err
	}
	if a.Dropped() {
		err := a.checkDropped()
		return a, err
	}
	if err := errors.Join(a.checkDatabases(ctx), a.check(ctx)); err != nil {
		return nil, err
	}
	tracking, err := a.at.TrackingSQL(ctx, a.key.Parent, a.real.ParentColumns...)
	if err != nil {
		return nil, err
	}
	a.Tracked = len(tracking) == 0
	a.Steps = []Step{
		{Text: "add the definition to " + l.Definitions.File, SQL: trimmed(lfk.Entry(a.key)), Done: a.defined},
		{Text: "track " + a.key.Parent, SQL: trimmed(tracking...), Done: a.Tracked},
		{Text: BeforeDrop + " (this command cannot check the servers), then run this command again", Shared: true},
		{Text: "drop the foreign key " + a.real.Name, SQL: []string{a.real.DropSQL()}},
	}
	return a, nil
}

// define completes the definition, unless the file has it. asked is the requested action, or "".
func (a *Adoption) define(asked string) (err error) {
	if err := a.checkAction(asked); err != nil || a.defined || a.Dropped() {
		return err
	}
	if a.key.Key = a.real.ParentColumns; slices.Equal(a.key.Key, []string{"id"}) {
		a.key.Key = nil
	}
	a.key.OnDelete, err = a.action(asked)
	return err
}

// trimmed returns the lines of texts.
func trimmed(texts ...string) (lines []string) {
	for _, text := range texts {
		lines = append(lines, strings.Split(strings.Trim(text, "\n"), "\n")...)
	}
	return lines
}

// checkDropped checks that a dropped foreign key is a loose one now.
func (a *Adoption) checkDropped() error {
	if a.defined {
		return nil
	}
	return errors.Join(lfk.WithEntry(fmt.Errorf("%s: %s was dropped, but %s has no definition for this foreign key: "+
		"run `caretaker lfk revert %s`, or add the definition again", a.Database, a.real.Name,
		a.admin.Definitions.File, catalog.ReferenceArgument(a.key.Table, a.key.Columns)), a.key)...)
}

// same returns the action that equals the constraint's. "" means none.
func (a *Adoption) same() string {
	switch {
	case a.real.OnDelete == "c":
		return lfkrepo.AsyncDelete
	case a.real.OnDelete == "n" && !a.real.SomeColumns:
		return lfkrepo.AsyncNullify
	}
	return ""
}

// checkAction returns an error for a definition in the file whose action differs from the requested
// one, or else from the constraint's.
func (a *Adoption) checkAction(asked string) error {
	wanted := cmp.Or(asked, a.same())
	if !a.defined || wanted == "" || wanted == a.key.OnDelete {
		return nil
	}
	why := "but " + wanted + " is equivalent to the foreign key " + a.real.Name
	if asked != "" {
		why = "not " + asked
	}
	return fmt.Errorf("%s: in %s, the definition %[4]s has on_delete %[3]s, %[5]s: correct the definition, or "+
		"use --on-delete %[3]s", a.Database, a.admin.Definitions.File, a.key.OnDelete,
		a.key, why)
}

// action returns the action on the children.
func (a *Adoption) action(asked string) (string, error) {
	if action := cmp.Or(asked, a.same()); action != "" {
		return action, nil
	}
	does := map[string]string{
		"a": "prevents the deletion of parents that have children (ON DELETE NO ACTION)",
		"r": "prevents the deletion of parents that have children (ON DELETE RESTRICT)",
		"n": "sets only some of the columns to NULL", "d": "sets the columns to their defaults",
	}
	return "", fmt.Errorf("%s: %s %s, which a loose foreign key cannot do: use --on-delete async_delete or "+
		"--on-delete async_nullify",
		a.Database, a.real.Name, does[a.real.OnDelete])
}

// checkDatabases refuses a pair of tables that several databases have: a constraint covers its own
// database alone, a record applies to all. GitLab's databases have empty copies of each other's
// tables.
func (a *Adoption) checkDatabases(ctx context.Context) error {
	if len(a.admin.Databases) < 2 {
		return nil
	}
	queue, err := a.database.Queue.DeletedRecords(ctx)
	if err != nil || queue.Exists && !queue.Managed {
		return err
	}
	all := Admin{Databases: a.admin.Databases}
	parents, parentsErr := all.databasesOf(ctx, a.key.Parent)
	children, childrenErr := all.databasesOf(ctx, a.key.Table)
	if err := errors.Join(parentsErr, childrenErr); err != nil {
		return fmt.Errorf("cannot find which databases contain the tables: %w", err)
	}
	if len(parents) < 2 || len(children) < 2 {
		return nil
	}
	return sharedError(fmt.Sprintf("%s: %s is in %s, and %s is in %s, so a deletion in one database would delete "+
		"children in every database that contains %[4]s: keep the foreign key if two databases may use the same "+
		"keys. Otherwise, write the definition, track %[2]s in each of its databases, send SIGHUP to every "+
		"server, then drop %[6]s manually", a.Database, a.key.Parent, run.DatabaseNames(parents), a.key.Table,
		run.DatabaseNames(children), a.real.Name))
}

// sharedError is why a foreign key whose tables are in several databases must stay.
type sharedError string

// Error returns the text.
func (e sharedError) Error() string { return string(e) }

// check refuses what lint would report as an error.
func (a *Adoption) check(ctx context.Context) error {
	alone := &lfk.Definitions{File: a.admin.Definitions.File, Keys: []lfkrepo.Definition{a.key}}
	result, err := Admin{Databases: a.admin.Databases, Only: a.Database, Definitions: alone}.Lint(ctx)
	if err != nil {
		return err
	}
	var refused []error
	for _, f := range result.Findings {
		if refuses(f) {
			refused = append(refused, fmt.Errorf("%s: %s: %s", f.Database, f.Object, f.Advice))
		}
	}
	if slices.Contains([]string{"c", "n", "d"}, a.real.OnUpdate) {
		a.Warnings = append(a.Warnings, a.real.Name+" has an ON UPDATE action, which loose foreign keys do not "+
			"support: make sure that the keys of "+a.key.Parent+" never change")
	}
	return errors.Join(refused...)
}

// refuses reports whether a finding prevents an adoption, and is not one that the adoption ends.
func refuses(f lfk.Finding) bool {
	harmless := []string{
		"trigger_missing", "trigger_disabled", "trigger_replication", "pending_without_definition", "fk_blocks_deletion",
		CodeAdoptedUndefined, "function_old", "child_missing", "default_partition_missing",
	}
	return f.Severity == lfk.SeverityError && !slices.Contains(harmless, f.Code)
}

// Prepare writes the definition and tracks the parent.
func (a *Adoption) Prepare(ctx context.Context) error {
	if !a.defined {
		if err := a.admin.Definitions.Add(a.key); err != nil {
			return err
		}
	}
	if !a.Tracked {
		_, err := a.at.Track(ctx, a.key.Parent, a.real.ParentColumns...)
		return err
	}
	return nil
}

// Number of tries of a step that fails because of locks, and the pause between them.
const (
	lockTries = 50
	lockPause = 500 * time.Millisecond
)

// retried repeats a step while another session holds a lock or a lease.
func (a *Adoption) retried(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		_, held := errors.AsType[*fencing.LeaseHeldError](err)
		if err == nil || n == lockTries || !held && !admin.Locked(err) {
			return err
		}
		a.admin.progress("%s: %s is locked, or a run is in progress (attempt %d of %d)", a.Database, a.key.Table,
			n+1, lockTries)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
	}
}

// leaseTime is longer than the transaction under the lease can take.
const leaseTime = 30 * time.Second

// Drop drops the constraint, while no run is running on the database.
func (a *Adoption) Drop(ctx context.Context) error {
	return a.retried(ctx, func() error {
		lease, err := a.database.Leases.AcquireLease(ctx, lfk.Name+"/"+a.Database, a.holder, leaseTime)
		if err != nil {
			return err
		}
		defer func() { _ = a.database.Leases.ReleaseLease(context.WithoutCancel(ctx), lease.Fence) }()
		return a.at.Drop(ctx, a.real, lease.Fence)
	})
}

// AddTo adds the definition, if the file needs it, to those that could not be written.
func (a *Adoption) AddTo(e *lfk.UnwrittenError) {
	if !a.defined {
		e.Add(a.key)
	}
}
