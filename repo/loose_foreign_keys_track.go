package repo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Tracked is what Track did.
type Tracked struct {
	// Table is the schema and name of the table that records are written for.
	Table string `json:"table"`
	// Column holds the key.
	Column string `json:"column"`
	// Triggers created, or enabled again, as "name on schema.table"; empty: already tracked.
	Triggers []string `json:"triggers"`
}

// Track adds the triggers that note deletions from a table of the application schema: to a partitioned table, all its
// levels and leaves. column is the key, "" for id. What is right already stays as it is; what cannot be right is a
// [*RefusedError]. The table's writers wait while the triggers are made.
func (d *Database) Track(ctx context.Context, table, column string) (Tracked, error) {
	operation := "track " + table
	request := tracking{d: d, table: table, column: column}
	var plan trackPlan
	err := d.readOnly(ctx, operation, func(tx pgx.Tx) (err error) {
		plan, err = request.plan(ctx, tx)
		return err
	})
	if err == nil && len(plan.steps) > 0 {
		err = d.ddl(ctx, operation, func(tx pgx.Tx) error {
			// No partition is attached between looking and creating.
			lock := "LOCK TABLE ONLY " + plan.root.sql() + " IN SHARE ROW EXCLUSIVE MODE"
			if err := execAll(ctx, tx, statement{lock, nil}); err != nil {
				return err
			}
			if plan, err = request.plan(ctx, tx); err != nil {
				return err
			}
			return plan.carryOut(ctx, tx)
		})
	}
	if err != nil {
		return Tracked{}, err
	}
	return Tracked{Table: plan.root.String(), Column: plan.function.column, Triggers: plan.describe()}, nil
}

// tracking is a request to track a table.
type tracking struct {
	d             *Database
	table, column string
}

// trackPlan is what has to be done to track it.
type trackPlan struct {
	queue    Queue
	root     relation
	function captureFunction
	steps    []trackStep
}

// trackStep makes one relation right.
type trackStep struct {
	relation relation
	trigger  string
	// create it; otherwise it is there and only has to be enabled.
	create bool
}

func (r tracking) plan(ctx context.Context, tx pgx.Tx) (p trackPlan, err error) {
	if p.queue, err = r.d.usableQueue(ctx, tx); err != nil {
		return p, err
	}
	if !p.queue.Exists {
		return p, r.d.refuse("there is no queue of deleted records: make it with `caretaker lfk install`")
	}
	if p.root, err = r.parent(ctx, tx); err != nil {
		return p, err
	}
	if p.function, err = r.choose(ctx, tx, p.queue, p.root); err != nil {
		return p, err
	}
	tree, err := partitionTree(ctx, tx, p.root.OID)
	if err != nil {
		return p, err
	}
	if err := r.checkTree(p.function, tree); err != nil {
		return p, err
	}
	existing, err := triggers(ctx, tx)
	for _, rel := range tree {
		step, needed, stepErr := r.step(rel, p.function, existing)
		if err == nil {
			err = stepErr
		}
		if needed {
			p.steps = append(p.steps, step)
		}
	}
	return p, err
}

// checkTree refuses names that PostgreSQL would cut off, and partitions whose deletions cannot be captured: with a
// trigger on the parent, deleting from them would fail.
func (r tracking) checkTree(f captureFunction, tree []relation) error {
	names := []string{f.name}
	for _, rel := range tree {
		if rel.Kind == kindForeign {
			return r.d.refuse("%s has the foreign table %s below it, whose deleted rows no trigger sees: it cannot be tracked", r.table, rel)
		}
		if !rel.Inherited {
			names = append(names, rel.Name+triggerSuffix)
		}
	}
	for _, name := range names {
		if len(name) > maxNameBytes {
			return r.d.refuse("%s cannot be tracked: the name %s would have %d bytes, PostgreSQL allows %d: shorten the table's or the column's name",
				r.table, name, len(name), maxNameBytes)
		}
	}
	return nil
}

// step is what has to be done about one relation.
func (r tracking) step(rel relation, f captureFunction, existing []Trigger) (step trackStep, needed bool, err error) {
	if rel.Inherited {
		return step, false, nil
	}
	name := rel.Name + triggerSuffix
	for _, t := range existing {
		if t.OID != rel.OID {
			continue
		}
		form, column := t.Form()
		switch {
		case form == FormRight && column == f.column:
			disabled := t.Fires == "D" || t.Fires == "R"
			return trackStep{relation: rel, trigger: t.Name}, disabled, nil
		case form == FormRight:
			return step, false, r.d.refuse("%s is tracked by its column %s: say --column %s, or `caretaker lfk untrack %s` first",
				rel, column, column, r.table)
		case t.Name == name:
			return step, false, r.d.refuse("%s has a different trigger named %s, which calls %s(%s): drop or rename it first",
				rel, name, t.Function, joined(t.Arguments))
		}
	}
	return trackStep{relation: rel, trigger: name, create: true}, true, nil
}

// createTriggerSQL fires after each statement that deletes, with the rows it deleted.
const createTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_table
FOR EACH STATEMENT EXECUTE FUNCTION {function}({argument})`

// enableTriggerSQL: by default triggers rest while a replica applies changes, and deletions would go unnoticed. ONLY,
// because partitions have triggers of other names.
const enableTriggerSQL = `ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}`

func (p trackPlan) carryOut(ctx context.Context, tx pgx.Tx) error {
	if err := p.function.create(ctx, tx, p.queue); err != nil {
		return err
	}
	argument := literal(p.root.Name)
	if p.function.name == plainFunctionName {
		argument = ""
	}
	for _, s := range p.steps {
		names := []string{
			"{trigger}", quote(s.trigger), "{table}", s.relation.sql(),
			"{function}", p.function.sql(p.queue), "{argument}", argument,
		}
		if s.create {
			if err := execAll(ctx, tx, statement{fill(createTriggerSQL, names...), nil}); err != nil {
				return err
			}
		}
		if err := execAll(ctx, tx, statement{fill(enableTriggerSQL, names...), nil}); err != nil {
			return err
		}
	}
	return nil
}

func (p trackPlan) describe() []string {
	done := []string{}
	for _, s := range p.steps {
		done = append(done, fmt.Sprintf("%s on %s", s.trigger, s.relation))
	}
	return done
}
