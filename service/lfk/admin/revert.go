package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// ErrPending means that records of the parent are pending, so rows may refer to deleted parents.
var ErrPending = errors.New("records of the parent are pending")

// PlanReversion returns the steps that make an adopted foreign key a real one again. It changes
// nothing.
func (l Admin) PlanReversion(ctx context.Context, r AdoptRequest) (*Adoption, error) {
	a, err := l.find(ctx, r)
	// Without a suggestion, the error ends with the name.
	named := r.Table + "." + lfkrepo.ColumnList(r.Columns)
	if errors.Is(err, ErrUnknownKey) && strings.HasSuffix(err.Error(), " "+named) {
		err = fmt.Errorf("%w: caretaker has never adopted this foreign key", err)
	}
	if err != nil {
		return nil, err
	}
	checked := !a.Dropped() && (a.real.Valid || !a.real.Adopted || !a.real.WasValid())
	a.Steps = []Step{
		{Text: "add the foreign key " + a.real.Name, SQL: []string{a.real.AddSQL()}, Done: !a.Dropped()},
		{Text: "wait until no record of " + a.key.Parent + " is pending", Done: checked && !a.real.Adopted},
	}
	if a.real.WasValid() && !a.real.Partitioned {
		a.Steps = append(a.Steps, Step{
			Text: "check the existing rows", SQL: []string{a.real.ValidateSQL()}, Done: checked,
		})
	}
	remove := Step{Text: "remove the definition from " + l.Definitions.File, Done: !a.defined}
	if a.defined {
		remove.SQL = trimmed(lfk.Entry(a.key))
	}
	a.Steps = append(a.Steps, remove)
	return a, nil
}

// Restore creates the constraint again. For a partitioned table that checks the rows, so no record
// may be pending then.
func (a *Adoption) Restore(ctx context.Context) error {
	if !a.Dropped() {
		return nil
	}
	if a.real.Partitioned {
		if err := a.pending(ctx); err != nil {
			return err
		}
	}
	return a.explain(a.retried(ctx, func() error { return a.at.Restore(ctx, a.real) }))
}

// pending returns [ErrPending] while records of the parent are pending.
func (a *Adoption) pending(ctx context.Context) error {
	queue, err := a.database.Queue.DeletedRecords(ctx)
	if err != nil || !queue.Exists {
		return err
	}
	waiting, err := a.database.Queue.PendingParents(ctx, queue, run.ReadLimits())
	at := slices.IndexFunc(waiting, func(p lfkrepo.QueuedParent) bool {
		return p.Name == catalog.RecordedName(a.key.Parent, queue.Schema)
	})
	switch {
	case err != nil || at < 0:
		return err
	case waiting[at].NextTry != nil:
		return fmt.Errorf("%w (%s on %s), and the next attempt is at %s UTC: run `caretaker lfk dead --failing "+
			"--table %s` to see the causes, wait until the worker has processed the records, then run this command "+
			"again", ErrPending, a.key.Parent, a.Database, waiting[at].NextTry.UTC().Format(time.DateTime),
			format.Argument(a.key.Parent))
	}
	return fmt.Errorf("%w (%s on %s): run `caretaker run %s --database %s` to process the records, then run "+
		"this command again", ErrPending, a.key.Parent, a.Database, lfk.Name, a.Database)
}

// explain adds what to do about rows without a parent.
func (a *Adoption) explain(err error) error {
	if !admin.Violated(err) {
		return err
	}
	return fmt.Errorf("rows of %s refer to rows of %s that no longer exist, so %s cannot be validated: run "+
		"`caretaker lfk orphans %s --fix` to queue the orphans, wait until the worker has processed the "+
		"orphans, then run this command again", a.key.Table, a.key.Parent, a.real.Name,
		catalog.ReferenceArgument(a.key.Table, a.key.Columns))
}

// Finish checks the rows. Then it deletes the record of the adoption, and last it removes the
// definition from the file. It returns the names of the definitions that the parent still has.
func (a *Adoption) Finish(ctx context.Context) (others []string, err error) {
	schema, err := a.database.ApplicationSchema(ctx)
	if err != nil {
		return nil, err
	}
	if a.real.Adopted {
		if err := a.pending(ctx); err != nil {
			return nil, err
		}
		if a.real.WasValid() && !a.real.Partitioned {
			validate := func() error {
				a.admin.progress("%s: checking the rows of %s", a.Database, a.key.Table)
				return a.at.Validate(ctx, a.real)
			}
			if err := a.explain(a.retried(ctx, validate)); err != nil {
				return nil, err
			}
		}
		if err := a.at.Forget(ctx, a.real); err != nil {
			return nil, err
		}
	}
	if a.defined {
		if err := a.admin.Definitions.Remove(a.key); err != nil {
			return nil, err
		}
	}
	for _, k := range a.admin.Definitions.Keys {
		if catalog.RecordedName(k.Parent, schema) == catalog.RecordedName(a.key.Parent, schema) {
			others = append(others, k.String())
		}
	}
	_, err = a.at.Recorded(ctx, a.key.Parent)
	a.Tracked = err == nil
	if _, refused := errors.AsType[*admin.RefusedError](err); refused {
		err = nil
	}
	return others, err
}

// NotAdopted reports whether no trace of an adoption existed at the start of the command.
func (a *Adoption) NotAdopted() bool { return !a.Dropped() && !a.real.Adopted && !a.defined }

// Parent returns the parent's name, as in commands.
func (a *Adoption) Parent() string { return a.key.Parent }
