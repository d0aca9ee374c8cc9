package lfkadmin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
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

// Track adds the triggers that record deletions from a table of the application schema: to a
// partitioned table, all its levels and leaves. column is the key, "" for id. What is right already
// stays as it is; what cannot be right is a [*RefusedError]. The table's writers wait while the
// triggers are made.
func (a Admin) Track(ctx context.Context, table, column string) (Tracked, error) {
	request := tracking{Admin: a, table: table, column: column}
	var plan trackPlan
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		plan, err = request.plan(ctx, tx)
		return len(plan.steps) > 0, err
	}
	err := a.change(ctx, "track "+table, needed, func(ctx context.Context, tx pgx.Tx) error {
		// No partition is attached between reading and creating.
		lock := "LOCK TABLE ONLY " + plan.root.sql() + " IN SHARE ROW EXCLUSIVE MODE"
		if err := run(ctx, tx, lock); err != nil {
			return err
		}
		if _, err := needed(ctx, tx); err != nil {
			return err
		}
		return plan.carryOut(ctx, tx)
	})
	if err != nil {
		return Tracked{}, err
	}
	done := Tracked{Table: plan.root.String(), Column: plan.function.column, Triggers: []string{}}
	for _, s := range plan.steps {
		done.Triggers = append(done.Triggers, fmt.Sprintf("%s on %s", s.trigger, s.relation))
	}
	return done, nil
}

// tracking is a request to track a table.
type tracking struct {
	Admin
	table, column string
}

// trackPlan is what has to be done to track it.
type trackPlan struct {
	queue    repo.DeletedRecords
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
	if p.queue, err = r.usableQueue(ctx, tx); err != nil {
		return p, err
	}
	if !p.queue.Exists {
		return p, r.refuse("there is no queue of deleted records: make it with `caretaker lfk install`")
	}
	if p.root, err = r.locate(ctx, tx, r.table); err != nil {
		return p, err
	}
	if err = r.checkRoot(p.root, p.queue); err != nil {
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

// checkRoot refuses what is no table that definitions can stand for.
func (r tracking) checkRoot(t relation, q repo.DeletedRecords) error {
	switch {
	case t.Partition:
		return r.refuse("%s is a partition of %s: track that, and its partitions with it", t, t.Parent)
	case t.Kind != kindTable && t.Kind != kindPartitioned:
		return r.refuse("%s is a view or a foreign table: only tables can be tracked", t)
	case !t.ParentHere:
		return r.refuse("%s is not in the application schema, which definitions stand for: "+
			"connect with another search_path", t)
	case t.Name == q.Table().Name:
		return r.refuse("%s is the queue itself", t)
	case t.Protected:
		return r.refuse("%s is write-protected here, a leftover of a split database: track it where "+
			"it lives", t)
	}
	return nil
}

// choose says how a table is to be tracked, or why it cannot be. The key must be unique among the
// living: a second row of the same key would lose its children with the first. The id of a
// partitioned table is taken for unique, because no index could say so.
func (r tracking) choose(
	ctx context.Context, tx pgx.Tx, q repo.DeletedRecords, t relation,
) (captureFunction, error) {
	f := columnFunction(r.column)
	byID := r.column == "" || r.column == "id"
	if byID {
		f = plainFunction()
		if t.Kind == kindPartitioned {
			f = overrideFunction()
		}
	}
	key, err := readKeyColumn(ctx, tx, t.OID, f.column)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && r.column == "":
		return f, r.refuse("%s has no column id: name the key with --column", t)
	case errors.Is(err, pgx.ErrNoRows):
		return f, r.refuse("%s has no column %s", t, f.column)
	case err != nil:
		return f, err
	case !key.integer:
		return f, r.refuse("the key %s of %s is of type %s: only smallint, integer and bigint can be "+
			"recorded",
			f.column, t, key.kind)
	case !key.unique && !(byID && t.Kind == kindPartitioned):
		return f, r.refuse("%s of %s is neither the primary key nor alone in a valid unique index "+
			"that is neither partial nor deferrable: another row of the same key would lose its children",
			f.column, t)
	}
	if byID {
		exists, err := f.exists(ctx, tx, q)
		if err == nil && !exists {
			err = r.refuse("the function %s is missing: the queue was not made by `caretaker lfk install`, "+
				"nor by a GitLab that has it", f.sql(q))
		}
		return f, err
	}
	return f, nil
}

// checkTree refuses names that PostgreSQL would cut off, and partitions whose deletions cannot be
// captured: with a trigger on the parent, deleting from them would fail.
func (r tracking) checkTree(f captureFunction, tree []relation) error {
	names := []string{f.name}
	for _, rel := range tree {
		if rel.Kind == kindForeign {
			return r.refuse("%s has the foreign table %s below it, whose deleted rows no trigger sees: "+
				"it cannot be tracked", r.table, rel)
		}
		if !rel.Inherited {
			names = append(names, rel.Name+triggerSuffix)
		}
	}
	for _, name := range names {
		if len(name) > maxNameBytes {
			return r.refuse("%s cannot be tracked: the name %s would have %d bytes, PostgreSQL allows %d: "+
				"shorten the table's or the column's name", r.table, name, len(name), maxNameBytes)
		}
	}
	return nil
}

// step is what has to be done about one relation.
func (r tracking) step(
	rel relation, f captureFunction, existing []Trigger,
) (step trackStep, needed bool, err error) {
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
			return trackStep{relation: rel, trigger: t.Name}, t.Off(), nil
		case form == FormRight:
			return step, false, r.refuse("%s is tracked by its column %s: say --column %s, or `caretaker "+
				"lfk untrack %s` first",
				rel, column, column, r.table)
		case t.Name == name:
			return step, false, r.refuse("%s has a different trigger named %s, which calls %s(%s): drop "+
				"or rename it first",
				rel, name, t.Function, literals(t.Arguments))
		}
	}
	return trackStep{relation: rel, trigger: name, create: true}, true, nil
}

// literals shows the arguments of a trigger.
func literals(arguments []string) string {
	quoted := make([]string, len(arguments))
	for i, argument := range arguments {
		quoted[i] = literal(argument)
	}
	return strings.Join(quoted, ", ")
}

// createTriggerSQL fires after each statement that deletes, with the rows it deleted.
const createTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_table
FOR EACH STATEMENT EXECUTE FUNCTION {function}({argument})`

// enableTriggerSQL: by default triggers rest while a replica applies changes, and deletions would
// go unnoticed. ONLY, because partitions have triggers of other names.
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
			if err := run(ctx, tx, fill(createTriggerSQL, names...)); err != nil {
				return err
			}
		}
		if err := run(ctx, tx, fill(enableTriggerSQL, names...)); err != nil {
			return err
		}
	}
	return nil
}

// Untracked is what Untrack did.
type Untracked struct {
	// Table is the schema and name of the table.
	Table string `json:"table"`
	// Parent is its unqualified name if its deletions are no longer recorded at all; empty after
	// untracking a partition.
	Parent string `json:"-"`
	// Triggers dropped, as "name on schema.table".
	Triggers []string `json:"triggers"`
}

const dropTriggerSQL = `DROP TRIGGER {trigger} ON {table}`

// Untrack drops the triggers that record deletions from a table and all its partitions; given a
// partition, that one's and those of its own partitions. Pending records stay and are still
// cleaned. A table without such a trigger is a [*RefusedError].
func (a Admin) Untrack(ctx context.Context, table string) (Untracked, error) {
	var target relation
	var drop []Trigger
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		target, drop, err = a.trackedBelow(ctx, tx, table)
		return true, err
	}
	err := a.change(ctx, "untrack "+table, needed, func(ctx context.Context, tx pgx.Tx) error {
		for _, t := range drop {
			names := []string{"{trigger}", quote(t.Name), "{table}", quote(t.Schema, t.Table)}
			if err := run(ctx, tx, fill(dropTriggerSQL, names...)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Untracked{}, err
	}
	done := Untracked{Table: target.String()}
	if !target.Partition && target.ParentHere {
		done.Parent = target.Name
	}
	for _, t := range drop {
		done.Triggers = append(done.Triggers, fmt.Sprintf("%s on %s", t.Name, t.Relation()))
	}
	return done, nil
}

// trackedBelow finds the triggers on a table and on its partitions.
func (a Admin) trackedBelow(
	ctx context.Context, tx pgx.Tx, table string,
) (target relation, below []Trigger, err error) {
	if target, err = a.locate(ctx, tx, table); err != nil {
		return target, nil, err
	}
	tree, err := partitionTree(ctx, tx, target.OID)
	if err != nil {
		return target, nil, err
	}
	existing, err := triggers(ctx, tx)
	for _, rel := range tree {
		for _, t := range existing {
			if t.OID == rel.OID && !rel.Inherited && strings.HasPrefix(t.Function, plainFunctionName) {
				below = append(below, t)
			}
		}
	}
	if err == nil && len(below) == 0 {
		err = a.refuse("%s is not tracked", target)
	}
	return target, below, err
}
