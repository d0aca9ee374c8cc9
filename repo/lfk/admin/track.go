package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Tracked is the result of Track.
type Tracked struct {
	// Table is the schema and name of the table that records are written for.
	Table string `json:"table"`
	// Column has the key, "" for a key of several columns.
	Column string `json:"column,omitempty"`
	// Columns are those of a key of several columns.
	Columns []string `json:"columns,omitempty"`
	// Triggers created or enabled again, as "name on schema.table". Empty: already tracked.
	Triggers []string `json:"triggers"`
	// Dropped lists the statement triggers that row triggers have replaced.
	Dropped []string `json:"dropped,omitempty"`
}

// Track adds the triggers that record deletions from a table, named as [catalog.ParseTable] reads
// it: for a partitioned table, on all its levels and leaves. columns are the key, in the order in
// which its values are recorded, id if none. Correct triggers stay as they are. A table that cannot
// be tracked is a [*RefusedError]. The table's writers wait while the triggers are created. A table
// that logical replication fills gets row triggers, which replace statement triggers.
func (a Admin) Track(ctx context.Context, table string, columns ...string) (Tracked, error) {
	// The caller's slice stays unchanged. Names are trimmed in a copy, and empty ones dropped.
	columns = slices.Clone(columns)
	for i := range columns {
		columns[i] = strings.TrimSpace(columns[i])
	}
	columns = slices.DeleteFunc(columns, func(c string) bool { return c == "" })
	request := tracking{Admin: a, table: table, columns: columns}
	var plan trackPlan
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		plan, err = request.plan(ctx, tx)
		return len(plan.steps) > 0, err
	}
	err := a.change(ctx, "track "+table, needed, func(ctx context.Context, tx pgx.Tx) error {
		// No partition is attached between reading and creating.
		mode := "SHARE ROW EXCLUSIVE"
		if plan.root.Replicated {
			mode = "ACCESS EXCLUSIVE"
		}
		lock := "LOCK TABLE ONLY " + plan.root.SQL() + " IN " + mode + " MODE"
		if err := run(ctx, tx, lock); err != nil {
			return err
		}
		// The plan from before the lock may be out of date: plan again under the lock.
		if _, err := needed(ctx, tx); err != nil {
			return err
		}
		return plan.carryOut(ctx, tx)
	})
	if err != nil {
		return Tracked{}, err
	}
	done := Tracked{Table: plan.root.String(), Triggers: []string{}}
	// A key of one column is reported as Column, a key of several columns as Columns.
	if done.Columns = plan.function.key; len(done.Columns) == 1 {
		done.Column, done.Columns = done.Columns[0], nil
	}
	for _, s := range plan.steps {
		if s.replaced != "" {
			done.Dropped = append(done.Dropped, fmt.Sprintf("%s on %s", s.replaced, s.relation))
		}
		if s.trigger != "" {
			done.Triggers = append(done.Triggers, fmt.Sprintf("%s on %s", s.trigger, s.relation))
		}
	}
	return done, nil
}

// tracking is a request to track a table.
type tracking struct {
	Admin
	// table is the name as the caller gave it. columns are the requested key, empty for id.
	table   string
	columns []string
}

// trackPlan lists the steps that track the table.
type trackPlan struct {
	// queue is the queue of deleted parents, root the table to track.
	queue lfk.DeletedRecords
	root  relation
	// function is the one that the triggers call. steps are empty if the table is already tracked.
	function captureFunction
	steps    []trackStep
}

// plan reads the catalogue and returns the steps that track the table. It changes nothing. A table
// that cannot be tracked is a [*RefusedError].
func (r tracking) plan(ctx context.Context, tx pgx.Tx) (p trackPlan, err error) {
	// 1. The queue, which must exist.
	if p.queue, err = r.usableQueue(ctx, tx); err != nil {
		return p, err
	}
	if !p.queue.Exists {
		return p, r.refuse("no queue of deleted parents found: run `caretaker lfk install`")
	}
	// 2. The table, which definitions must be able to name.
	if p.root, err = r.locate(ctx, tx, r.table); err != nil {
		return p, err
	}
	if err = r.checkRoot(p.root, p.queue); err != nil {
		return p, err
	}
	// 3. Its partitions, and the function that records its key.
	trees, err := readTrees(ctx, tx, p.root.OID)
	if err != nil {
		return p, err
	}
	tree := trees[p.root.OID]
	p.root.Replicated = replicated(tree)
	indexes, err := catalog.Indexes(ctx, tx, p.root.OID)
	if err != nil {
		return p, err
	}
	if p.function, err = r.choose(ctx, tx, p.queue, p.root, indexes); err != nil {
		return p, err
	}
	if err := r.checkTree(p.function, tree); err != nil {
		return p, err
	}
	// 4. The existing triggers, compared with those that each relation of the tree requires.
	existing, err := triggers(ctx, tx)
	if err != nil {
		return p, err
	}
	old, err := renamedKey(ctx, tx, p.root, p.function.key, existing)
	for _, rel := range tree {
		step, needed, stepErr := r.step(rel, p.root, p.function, old, existing)
		if err == nil {
			err = stepErr
		}
		if needed {
			p.steps = append(p.steps, step)
		}
	}
	// 5. Records from earlier tracking, which may have another key.
	if err == nil {
		err = r.checkLeft(ctx, tx, p, existing, indexes)
	}
	return p, err
}

// checkRoot refuses a relation that definitions cannot name as a table.
func (r tracking) checkRoot(t relation, q lfk.DeletedRecords) error {
	switch {
	case t.Schema == "maintenance":
		return r.refuse("%s belongs to caretaker: only application tables can be tracked", t)
	case t.Partition:
		return r.refuse("%s is a partition of %s: track %[2]s, which includes all its "+
			"partitions", t, t.Parent)
	case t.Kind != kindTable && t.Kind != kindPartitioned:
		return r.refuse("%s is a view or a foreign table: only tables can be tracked", t)
	case !t.ParentHere && !q.Managed:
		return r.refuse("%s is not in the application schema, and GitLab's queue records only tables of "+
			"that schema: connect with a different search_path", t)
	case !t.ParentHere && strings.Contains(t.Schema, "."):
		return r.refuse("%s cannot be tracked, because the dot in its schema name would make its records "+
			"ambiguous: rename the schema", t)
	case t.ParentHere && t.Name == q.Table().Name:
		return r.refuse("%s is the queue itself", t)
	case t.Protected:
		return r.refuse("%s is a write-protected copy from before the database was split: track the table in "+
			"the database that the application writes to", t)
	}
	return nil
}

// choose decides how a table is tracked, or why it cannot be. The key must be unique among existing
// rows: a second row of the same key would lose its children with the first. The id of a
// partitioned table counts as unique, because no index could prove that.
func (r tracking) choose(
	ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords, t relation, indexes []catalog.Index,
) (f captureFunction, err error) {
	columns, err := r.key(ctx, tx, t, indexes)
	if err != nil {
		return f, err
	}
	byID := len(columns) == 1 && columns[0].Name == "id"
	if err := r.checkTypes(columns, q, t); err != nil {
		return f, err
	}
	names := namesOf(columns)
	if !byID || t.Kind != kindPartitioned {
		if err := r.checkUnique(t, names, indexes); err != nil {
			return f, err
		}
	}
	// A key that is not one integer is recorded as texts, by a function of this table alone. The
	// shared functions record one integer.
	switch {
	case len(columns) > 1 || columns[0].Class != pg.ClassInteger:
		return tableFunction(valuesFunctionPrefix, t, names), nil
	case byID && t.Kind != kindPartitioned && !t.Replicated:
		f = plainFunction()
	case !t.ParentHere || t.Replicated:
		return tableFunction(integerFunctionPrefix, t, names), nil
	case byID:
		f = overrideFunction(t)
	default:
		return columnFunction(names[0], t), nil
	}
	// A shared function must exist and insert something: only install or GitLab's migrations create
	// it.
	all, err := readFunctions(ctx, tx)
	if err == nil && !all.have(f, q) {
		err = r.refuse("the function %s is missing or inserts nothing: run `caretaker lfk install`, or, "+
			"if GitLab manages the queue, run GitLab's migrations", f.sql(q))
	}
	return f, err
}

// columnNamesSQL reads the names of a table's columns.
const columnNamesSQL = `
SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped`

// key returns the requested columns. Without a request it returns id. An unknown or repeated name
// is refused, and so are more than [lfk.MaxKeyColumns] names.
func (r tracking) key(
	ctx context.Context, tx pgx.Tx, t relation, indexes []catalog.Index,
) ([]catalog.KeyColumn, error) {
	names := r.columns
	if len(names) == 0 {
		names = []string{"id"}
	}
	if len(names) > lfk.MaxKeyColumns {
		return nil, r.misnamed("the key %[2]s of %[3]s has too many columns: specify at most %[1]d columns",
			lfk.MaxKeyColumns, lfk.ColumnList(names), t)
	}
	columns, err := catalog.KeyColumns(ctx, tx, []uint32{t.OID}, names...)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		switch {
		case slices.Contains(names[:i], name):
			return nil, r.misnamed("the column %s is specified twice", name)
		case slices.ContainsFunc(columns, func(c catalog.KeyColumn) bool { return c.Name == name }):
		case len(r.columns) == 0:
			example := ""
			for _, i := range indexes {
				if example == "" && catalog.Unique(indexes, i.Columns) && !slices.Contains(i.Columns, "") {
					example = ", such as --column " + format.Argument(strings.Join(i.Columns, ","))
				}
			}
			return nil, r.refuse("%s has no column named id: specify the key with --column%s", t, example)
		default:
			hint := ""
			if all, err := list(ctx, tx, pgx.RowTo[string], columnNamesSQL, t.OID); err == nil {
				if near := format.Nearest(name, all); near != "" {
					hint = ": did you mean " + near + "?"
				}
			}
			return nil, r.misnamed("%s has no column %s%s", t, name, hint)
		}
	}
	return columns, nil
}

// namesOf returns the names of columns, in their order.
func namesOf(columns []catalog.KeyColumn) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// checkTypes refuses keys that the queue cannot take. GitLab's own queue takes one integer. A queue
// of our own also takes other types and several columns, if it has the column key_values.
func (r tracking) checkTypes(columns []catalog.KeyColumn, q lfk.DeletedRecords, t relation) error {
	wide := len(columns) > 1
	for _, c := range columns {
		switch {
		case c.Class == pg.ClassInteger:
			continue
		case !q.Managed:
			return r.refuse("the key %s of %s is of type %s: only smallint, integer and bigint can be "+
				"recorded in GitLab's queue", c.Name, t, c.Exact)
		case c.Class == "":
			return r.refuse("the key %s of %s is of type %s: only smallint, integer, bigint, uuid, and "+
				"text, varchar or char with a deterministic collation can be recorded", c.Name, t, c.Exact)
		}
		wide = true
	}
	switch {
	case wide && !q.Managed:
		return r.refuse("the key %s of %s has several columns: only one smallint, integer or bigint can "+
			"be recorded in GitLab's queue", lfk.ColumnList(namesOf(columns)), t)
	case wide && !q.Wide:
		return r.refuse("%s has no column key_values, which the key of %s requires: run "+
			"`caretaker lfk install` to add the column", q.Schema+"."+q.Table().Name, t)
	}
	return nil
}

// makeUnique is the advice about a key that is not unique. It follows the columns of the key.
const makeUnique = " (valid, not partial, not deferrable), or specify a unique key with --column"

// checkUnique refuses a key that no primary key or valid unique index proves to be unique.
func (r tracking) checkUnique(t relation, names []string, indexes []catalog.Index) error {
	switch {
	case catalog.Unique(indexes, names):
		return nil
	case len(names) == 1:
		return r.refuse("%s of %s is not a unique key, so other rows with the same key would lose their "+
			"children: create a unique index on only this column"+makeUnique, names[0], t)
	}
	return r.refuse("%s of %s are not a unique key, so other rows with the same key would lose their "+
		"children: create a unique index on exactly these columns"+makeUnique, lfk.ColumnList(names), t)
}

// checkTree refuses names that PostgreSQL would truncate, and partitions whose deletions cannot be
// captured: with a trigger on the parent, deleting from them would fail.
func (r tracking) checkTree(f captureFunction, tree []relation) error {
	names := []string{f.name, tree[0].Name + triggerSuffix}
	for _, rel := range tree {
		if rel.Kind == kindForeign {
			return r.refuse("%s cannot be tracked, because its descendant %s is a foreign table, and triggers "+
				"cannot capture deletions from foreign tables", r.table, rel)
		}
	}
	for _, name := range names {
		if len(name) > maxNameBytes {
			return r.refuse("%s cannot be tracked, because the trigger or function name %s would have %d bytes, "+
				"but PostgreSQL allows only %d: shorten the name of the table or column", r.table, name, len(name), maxNameBytes)
		}
	}
	return nil
}
