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
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// Adoption turns a real foreign key into a loose one, and back. The order of its steps is such that
// rows without a parent are cleaned at any time: the definition is there, every
// server knows it and deletions are recorded before the constraint goes; the constraint is there and
// all rows are checked before the definition goes. While both are there, the constraint acts first
// and the worker finds nothing. Whatever is interrupted, the same command goes on: each step looks
// whether it is done.
//
// The last line of defence is the run: it leaves the records of a parent alone while its definitions
// lack an adopted key (package lfk, adopted.go).

// Step is one of an adoption or a reversion.
type Step struct {
	// Text says what is done.
	Text string `json:"step"`
	// SQL that does it, or lines of the definitions file.
	SQL []string `json:"sql,omitempty"`
	// Done: there is nothing to do.
	Done bool `json:"done"`
}

// AdoptRequest names a foreign key.
type AdoptRequest struct {
	Table   string
	Columns []string
	// Constraint chooses one of several; "": there must be one.
	Constraint string
	// OnDelete is the action; "": what the constraint does.
	OnDelete string
	// Holder is who asks, for the lease.
	Holder string
}

// Adoption is a foreign key with what has been done and is to be done.
type Adoption struct {
	Database   string `json:"database"`
	Definition string `json:"definition"`
	Constraint string `json:"constraint"`
	Steps      []Step `json:"steps"`
	// Warnings say what the loose foreign key does otherwise than the constraint.
	Warnings []string `json:"warnings,omitempty"`

	admin  Admin
	at     admin.Admin
	home   *repo.Database
	real   admin.RealKey
	key    lfkrepo.LooseForeignKey
	holder string
	// defined, tracked: the definition is in the file, the parent is tracked.
	defined, tracked bool
}

// Dropped reports whether the constraint is gone.
func (a *Adoption) Dropped() bool { return a.real.OID == 0 }

// Ready reports whether the definition was in the file when the command began.
func (a *Adoption) Ready() bool { return a.defined }

// find finds the foreign key, and the definition that stands for it.
func (l Admin) find(ctx context.Context, r AdoptRequest) (*Adoption, error) {
	if l.Definitions == nil {
		return nil, errors.New("there is no definitions file: set " +
			"workers.loose_foreign_keys_cleanup.definitions to one, which may be empty")
	}
	homes, err := l.homesOf(ctx, r.Table)
	switch {
	case err != nil:
		return nil, err
	case len(homes) == 0:
		return nil, l.unknownTable(r.Table)
	case len(homes) > 1:
		return nil, fmt.Errorf("%s is in %s: say with --database which is meant", r.Table,
			run.DatabaseNames(homes))
	}
	a := &Adoption{
		Database: homes[0].Name, admin: l, at: admin.New(homes[0].Database), home: homes[0], holder: r.Holder,
	}
	found, err := a.at.RealKeys(ctx, r.Table, r.Columns)
	if err != nil {
		return nil, err
	}
	if a.real, err = choose(found, r); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Database, err)
	}
	a.Constraint = a.real.Name
	schema, err := a.home.ApplicationSchema(ctx)
	if err != nil {
		return nil, err
	}
	a.key = lfkrepo.LooseForeignKey{
		Table: writtenIn(a.real.Table, schema), Parent: writtenIn(a.real.Parent, schema),
		Columns: a.real.Columns, OnDelete: r.OnDelete,
	}
	if known := a.known(schema); known != nil {
		a.key, a.defined = *known, true
	}
	a.Definition = a.key.String()
	return a, nil
}

// choose chooses the one foreign key that is meant.
func choose(found []admin.RealKey, r AdoptRequest) (admin.RealKey, error) {
	named := r.Table + "." + lfkrepo.ColumnList(r.Columns)
	names := make([]string, len(found))
	for i, k := range found {
		names[i] = k.Name
	}
	if r.Constraint != "" && len(found) > 0 {
		found = slices.DeleteFunc(found, func(k admin.RealKey) bool { return k.Name != r.Constraint })
		if len(found) == 0 {
			return admin.RealKey{}, fmt.Errorf("%w %s of %s: --constraint may be %s", ErrUnknownKey,
				r.Constraint, named, strings.Join(names, ", "))
		}
	}
	switch len(found) {
	case 0:
		return admin.RealKey{}, fmt.Errorf("%w of %s", ErrUnknownKey, named)
	case 1:
		if of := found[0].CopyOf; of != "" {
			return found[0], fmt.Errorf("%s of %s is a copy of the foreign key of %s: name that",
				found[0].Name, named, of)
		}
		return found[0], nil
	}
	return found[0], fmt.Errorf("%s has the foreign keys %s: say with --constraint which is meant",
		named, strings.Join(names, ", "))
}

// writtenIn is a table as definitions have it, where schema is the application's.
func writtenIn(t catalog.Table, schema string) string {
	if t.Schema == schema {
		t.Schema = ""
	}
	return t.Written()
}

// known is the definition that stands for the foreign key; nil: the file has none.
func (a *Adoption) known(schema string) *lfkrepo.LooseForeignKey {
	return lfk.StandsFor(a.admin.Definitions.Keys, schema, capture.AdoptedKey{
		Schema: a.real.Table.Schema, Table: a.real.Table.Name, Columns: a.real.Columns,
		ParentSchema: a.real.Parent.Schema, Parent: a.real.Parent.Name, Definition: a.real.Definition,
	})
}

// PlanAdoption finds out what has to be done to make a foreign key a loose one, and refuses what
// cannot be. It changes nothing.
func (l Admin) PlanAdoption(ctx context.Context, r AdoptRequest) (*Adoption, error) {
	allowed := []string{"", lfkrepo.AsyncDelete, lfkrepo.AsyncNullify}
	if !slices.Contains(allowed, r.OnDelete) {
		return nil, fmt.Errorf("%w %s: allowed are %s", ErrUnknownAction, r.OnDelete, strings.Join(allowed[1:], ", "))
	}
	a, err := l.find(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := a.checkAction(r.OnDelete); err != nil {
		return nil, err
	}
	if a.Dropped() {
		err := a.checkDropped()
		return a, err
	}
	if !a.defined {
		if a.key.Key = a.real.ParentColumns; slices.Equal(a.key.Key, []string{"id"}) {
			a.key.Key = nil
		}
		if a.key.OnDelete, err = a.action(r.OnDelete); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(a.checkHomes(ctx), a.check(ctx)); err != nil {
		return nil, err
	}
	tracking, err := a.at.TrackingSQL(ctx, a.key.Parent, a.real.ParentColumns...)
	if err != nil {
		return nil, err
	}
	a.tracked = len(tracking) == 0
	a.Steps = []Step{
		{Text: "add the definition to " + l.Definitions.File, SQL: trimmed(lfk.Entry(a.key)), Done: a.defined},
		{Text: "track " + a.key.Parent, SQL: trimmed(tracking...), Done: a.tracked},
		{Text: "send SIGHUP to every server, so that it knows the definition, which cannot be checked from " +
			"here; then run this command again"},
		{Text: "drop the foreign key " + a.real.Name, SQL: []string{a.real.DropSQL()}},
	}
	return a, nil
}

// trimmed are the lines of texts.
func trimmed(texts ...string) (lines []string) {
	for _, text := range texts {
		lines = append(lines, strings.Split(strings.Trim(text, "\n"), "\n")...)
	}
	return lines
}

// checkDropped: what is gone must be loose now.
func (a *Adoption) checkDropped() error {
	if a.defined {
		return nil
	}
	return withEntry(fmt.Errorf("%s: %s was dropped, but %s has no definition for it: run `caretaker lfk revert "+
		"%s`, or write the definition again", a.Database, a.real.Name,
		a.admin.Definitions.File, catalog.ReferenceArgument(a.key.Table, a.key.Columns)), a.key)
}

// same is the action that does what the constraint does; "": there is none.
func (a *Adoption) same() string {
	switch {
	case a.real.OnDelete == "c":
		return lfkrepo.AsyncDelete
	case a.real.OnDelete == "n" && !a.real.SomeColumns:
		return lfkrepo.AsyncNullify
	}
	return ""
}

// checkAction refuses a definition in the file that does something else than was asked for, or else
// than the constraint does.
func (a *Adoption) checkAction(asked string) error {
	wanted := cmp.Or(asked, a.same())
	if !a.defined || wanted == "" || wanted == a.key.OnDelete {
		return nil
	}
	why := "but " + a.real.Name + " does what " + wanted + " does"
	if asked != "" {
		why = "not " + asked
	}
	return fmt.Errorf("%s: %s has on_delete: %s for %s, %s: correct the definition, or say "+
		"--on-delete %[3]s if that is meant", a.Database, a.admin.Definitions.File, a.key.OnDelete,
		a.key, why)
}

// action is what becomes of the children.
func (a *Adoption) action(asked string) (string, error) {
	same := a.same()
	switch {
	case asked != "":
		return asked, nil
	case same != "":
		return same, nil
	}
	does := map[string]string{
		"a": "is ON DELETE NO ACTION: it keeps parents that have children from being deleted",
		"r": "is ON DELETE RESTRICT: it keeps parents that have children from being deleted",
		"n": "sets some of its columns to NULL", "d": "sets its columns to their defaults",
	}
	return "", fmt.Errorf("%s: %s %s, which no loose foreign key does: say with --on-delete "+
		"async_delete or async_nullify what is to become of the children",
		a.Database, a.real.Name, does[a.real.OnDelete])
}

// checkHomes refuses a pair of tables that several databases have: a constraint sees its own database
// alone, a record is applied in all. GitLab's databases have copies of each other's tables, empty.
func (a *Adoption) checkHomes(ctx context.Context) error {
	queue, err := a.home.Queue.DeletedRecords(ctx)
	if err != nil || queue.Exists && !queue.Managed {
		return err
	}
	all := Admin{Databases: a.admin.Databases}
	parents, parentsErr := all.homesOf(ctx, a.key.Parent)
	children, childrenErr := all.homesOf(ctx, a.key.Table)
	if err := errors.Join(parentsErr, childrenErr); err != nil {
		return fmt.Errorf("which databases have the tables is known only if every one answers: %w", err)
	}
	if len(parents) < 2 || len(children) < 2 {
		return nil
	}
	return fmt.Errorf("%s: %s is in %s, and %s in %s: a deletion in one of them would be carried out in "+
		"all that have %[4]s. If each has keys of its own this foreign key must stay. Only if no key is "+
		"used in two databases: write the definition, track %[2]s in each, send SIGHUP to every server, then "+
		"drop %[6]s yourself", a.Database, a.key.Parent, run.DatabaseNames(parents), a.key.Table,
		run.DatabaseNames(children), a.real.Name)
}

// check refuses what lint would call an error.
func (a *Adoption) check(ctx context.Context) error {
	alone := &lfk.Definitions{File: a.admin.Definitions.File, Keys: []lfkrepo.LooseForeignKey{a.key}}
	result, err := Admin{Databases: a.admin.Databases, Only: a.Database, Definitions: alone}.Lint(ctx)
	if err != nil {
		return err
	}
	harmless := []string{
		"trigger_missing", "trigger_disabled", "trigger_replication", "pending_without_definition", "fk_blocks_deletion",
		"function_old", "child_missing", "default_partition_missing",
	}
	var refused []error
	for _, f := range result.Findings {
		if f.Severity == lfk.SeverityError && !slices.Contains(harmless, f.Code) {
			refused = append(refused, fmt.Errorf("%s: %s: %s", f.Database, f.Object, f.Advice))
		}
	}
	if slices.Contains([]string{"c", "n", "d"}, a.real.OnUpdate) {
		a.Warnings = append(a.Warnings, a.real.Name+" has an action ON UPDATE, which a loose foreign "+
			"key has not: the keys of "+a.key.Parent+" must not change any more")
	}
	return errors.Join(refused...)
}

// Prepare writes the definition and tracks the parent.
func (a *Adoption) Prepare(ctx context.Context) error {
	if !a.defined {
		if err := a.admin.Definitions.Add(a.key); err != nil {
			return withEntry(fmt.Errorf("%w: write it yourself", err), a.key)
		}
	}
	if !a.tracked {
		_, err := a.at.Track(ctx, a.key.Parent, a.real.ParentColumns...)
		return err
	}
	return nil
}

// How often a step is tried that others hold locks against, and the pause in between.
const (
	lockTries = 50
	lockPause = 500 * time.Millisecond
)

// retried tries a step again while a lock or a lease is held elsewhere.
func retried(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		_, held := errors.AsType[*fencing.LeaseHeldError](err)
		if err == nil || n == lockTries || !held && !admin.Locked(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
	}
}

// leaseTime is longer than the transaction under the lease can take.
const leaseTime = 30 * time.Second

// Drop drops the constraint, while no run is at work on the database.
func (a *Adoption) Drop(ctx context.Context) error {
	return retried(ctx, func() error {
		lease, err := a.home.Leases.AcquireLease(ctx, lfk.Name+"/"+a.Database, a.holder, leaseTime)
		if err != nil {
			return err
		}
		defer func() { _ = a.home.Leases.ReleaseLease(context.WithoutCancel(ctx), lease.Fence) }()
		return a.at.Drop(ctx, a.real, lease.Fence)
	})
}

// withEntry adds the lines of a definition to an error, each as an error of its own.
func withEntry(err error, key lfkrepo.LooseForeignKey) error {
	all := []error{err}
	for line := range strings.Lines(lfk.Entry(key)) {
		all = append(all, errors.New(strings.TrimSuffix(line, "\n")))
	}
	return errors.Join(all...)
}
