package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// CodeSequenceBehind is the code of findings about sequences.
const CodeSequenceBehind = "sequence_behind"

// Lint is the result of Admin.Lint.
type Lint struct {
	// Findings of the file and the schedule, then of the databases one by one, then of all databases
	// together.
	Findings []lfk.Finding `json:"findings"`
	// Errors and Warnings are the numbers of findings.
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	// Unchecked lists the databases that could not be inspected.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Lint checks the definitions against every selected database, without changing anything. The error
// has the databases that cannot be inspected. Tables missing everywhere are then unknown, and not
// reported. If none could be inspected, Lint returns no findings at all.
func (l Admin) Lint(ctx context.Context) (Lint, error) {
	check, err := l.lint(ctx)
	if check == nil {
		return Lint{}, err
	}
	return check.result, err
}

// lint is Lint with all that it has read. It returns nil for no findings at all.
func (l Admin) lint(ctx context.Context) (*lint, error) {
	if l.Definitions == nil {
		if check, err := undefinedAdoptions(ctx, l); len(check.result.Findings) > 0 {
			return check, err
		}
		return nil, errors.New("no definitions file configured: set " +
			"workers.loose_foreign_keys_cleanup.definitions to the definitions file")
	}
	check := &lint{Admin: l, Check: lfk.Check{Keys: l.Definitions.Keys}, gone: lfk.DroppedChildren{}}
	check.result.Findings = append([]lfk.Finding{}, l.Definitions.Warnings...)
	check.result.Warnings = len(l.Definitions.Warnings)
	if l.Schedule != "" {
		for _, i := range lfk.StarvedDatabases(l.Schedule, len(l.Databases)) {
			check.at(l.Databases[i].Name, l.Schedule).warn("schedule_starves_database",
				"schedule %s never starts a run on %s with `rotation: minute`: use a schedule that runs every "+
					"minute, or set `rotation: all`", l.Schedule, l.Databases[i].Name)
		}
	}
	var seen map[string]*lfkrepo.SeenChildren
	err := l.each(ctx, func(d *repo.Database) error {
		l.progress("%s: inspecting %s", d.Name, format.Pluralize(len(check.Keys), "definition"))
		at := admin.Watched(admin.New(d.Database), func(done, total int) {
			l.progress("%s: checking triggers of child tables, %d of %d", d.Name, done, total)
		})
		inspection, err := at.Inspect(ctx, check.Keys)
		if err != nil {
			return err
		}
		check.Seen = append(check.Seen, lfk.Inspected{Name: d.Name, Inspection: inspection})
		if err := check.readAdopted(ctx, d); err != nil {
			return err
		}
		if seen == nil {
			seen, err = l.Databases[0].Children.SeenChildren(ctx)
		}
		if err == nil {
			now := lfk.SeenIn(d.Name, check.Keys, func(i int) bool { return inspection.Children[i] != nil })
			err = check.gone.Add(ctx, d, seen[d.Name], now)
		}
		return err
	})
	if err != nil && len(check.Seen) == 0 {
		return nil, err
	}
	check.Complete = len(check.Seen) == len(l.Databases)
	check.result.Unchecked = check.unchecked()
	if check.Complete {
		names := slices.AppendSeq(l.childTables(), maps.Keys(l.Definitions.ByParent()))
		others, othersErr := lfkrepo.NotTables(ctx, repo.Kernels(l.Databases), names)
		check.others, err = others, errors.Join(err, othersErr)
	}
	// The reason why main cannot be inspected is already reported.
	if !slices.Contains(check.result.Unchecked, l.Databases[0].Name) {
		accepted, mainErr := l.AbsentChildren(ctx)
		check.Accepted, err = lfk.AbsencesOf(accepted), errors.Join(err, mainErr)
	}
	check.databases()
	check.missing(sync.OnceValue(func() lfk.TableNames {
		selected, _ := l.Selected()
		return lfk.ReadTableNames(ctx, selected)
	}))
	check.shared()
	return check, err
}

// databases checks each database that was inspected.
func (l *lint) databases() {
	for _, d := range l.Seen {
		l.queue(d)
		l.children(d)
		l.foreignKeys(d)
		l.parents(d)
		l.keyFaults(d)
		l.triggers(d)
		l.pending(d)
		l.undefined(d)
	}
}

// lint is a running check.
type lint struct {
	Admin
	lfk.Check
	// others has remarks on children that are no tables.
	others map[string]string
	// gone are the children that databases no longer have.
	gone lfk.DroppedChildren
	// adopted are the adopted foreign keys by database.
	adopted map[string][]capture.AdoptedKey
	result  Lint
}

// unchecked returns the selected databases that could not be inspected.
func (l *lint) unchecked() (names []string) {
	selected, _ := l.Selected()
	for _, d := range selected {
		if !slices.ContainsFunc(l.Seen, func(i lfk.Inspected) bool { return i.Name == d.Name }) {
			names = append(names, d.Name)
		}
	}
	return names
}

// spot is the subject of findings: an object in a database.
type spot struct {
	*lint
	database, object string
}

// at returns the place to which the next findings belong.
func (l *lint) at(database, object string) spot { return spot{l, database, object} }

// fail adds an error at this place. An error makes `caretaker lfk lint` exit with 1.
func (s spot) fail(code, advice string, args ...any) {
	s.result.Errors++
	s.add(lfk.Finding{Severity: lfk.SeverityError, Code: code, Advice: fmt.Sprintf(advice, args...)})
}

// warn adds a warning at this place. Warnings do not change the exit code.
func (s spot) warn(code, advice string, args ...any) {
	s.result.Warnings++
	s.add(lfk.Finding{Severity: lfk.SeverityWarning, Code: code, Advice: fmt.Sprintf(advice, args...)})
}

// add adds a finding whose severity is already set, and sets its place.
func (s spot) add(f lfk.Finding) {
	f.Database, f.Object = s.database, s.object
	s.result.Findings = append(s.result.Findings, f)
}

// queue reports faults of the queue of deleted parents in one database. These are a missing or old
// queue, wrong columns, old trigger functions and a missing default partition.
func (l *lint) queue(d lfk.Inspected) {
	queue := d.Queue.Schema + ".loose_foreign_keys_deleted_records"
	switch {
	case !d.Queue.Exists:
		l.at(d.Name, queue).fail("queue_missing", "database %s has no queue: run `caretaker lfk install "+
			"--database %[1]s`", d.Name)
	case d.Queue.Managed && !d.Queue.Wide && l.needsValues(d):
		l.at(d.Name, queue).fail("queue_old", "column key_values is missing, but required for keys other than a "+
			"single integer: run `caretaker lfk install --database %s` to add the column", d.Name)
	case len(d.QueueFaults) > 0:
		l.at(d.Name, queue).fail("queue_shape", "%s: make the columns match those of GitLab's queue",
			strings.Join(d.QueueFaults, ", "))
	}
	for _, table := range slices.Sorted(maps.Keys(d.Routed)) {
		l.at(d.Name, d.Queue.Schema+"."+table).fail("queue_shape", "%s: make the columns match those of GitLab's queue",
			strings.Join(d.Routed[table], ", "))
	}
	for _, function := range d.OldFunctions {
		l.at(d.Name, function).warn("function_old",
			"function %s is missing, outdated or not connected to a queue: run `caretaker lfk install --database "+
				"%s` to recreate the function", function, d.Name)
	}
	l.sequences(d)
	if !d.ActiveMissing {
		return
	}
	advice := "create the partition, or set the column's default to an existing partition"
	if d.Queue.Managed {
		advice = fmt.Sprintf("run `caretaker lfk install --database %s` or the worker to create the partition", d.Name)
	}
	l.at(d.Name, queue).fail("default_partition_missing", "deletions from tracked tables fail, "+
		"because the default of the `partition` column does not name an existing partition: %s", advice)
}

// Sequences reports the findings of Lint about sequences. It requires no definitions.
func (l Admin) Sequences(ctx context.Context) (Lint, error) {
	check := &lint{Admin: l}
	err := l.each(ctx, func(d *repo.Database) error {
		inspection, err := admin.New(d.Database).InspectSequences(ctx)
		check.sequences(lfk.Inspected{Name: d.Name, Inspection: inspection})
		return err
	})
	return check.result, err
}

// sequences reports sequences whose next number is taken already, so that an insert fails with
// 23505. For a queue that caretaker does not manage, the finding has another repair.
func (l *lint) sequences(d lfk.Inspected) {
	for _, s := range d.Lagging {
		at, fails := l.at(d.Name, s.Table), "caretaker's inserts into this table fail"
		if s.OfQueue {
			fails = "deletions from tracked tables fail"
		}
		repair := fmt.Sprintf("`caretaker lfk install --database %s` to advance the sequence", d.Name)
		if !d.Queue.Exists || s.OfQueue && !d.Queue.Managed {
			repair = s.Repair()
		}
		at.fail(CodeSequenceBehind, "%s (23505), because sequence %s has not passed %d, the "+
			"highest number in use: run %s", fails, s.Sequence, s.Highest, repair)
	}
}

// children reports what makes definitions impossible or slow.
func (l *lint) children(d lfk.Inspected) {
	for i, child := range d.Children {
		if child == nil {
			continue
		}
		key := l.Keys[i]
		at := l.at(d.Name, key.String())
		for _, column := range child.MissingColumns {
			at.fail("column_missing",
				"table %s has no column %s%s: correct the definition or the table", key.Table, column,
				lfk.Parenthesized(lfk.DidYouMean(format.Nearest(column, child.Names))))
		}
		mismatches := append(l.mismatches(key, child), child.Mismatches...)
		for _, mismatch := range mismatches {
			at.fail("type_mismatch", "%s: correct the definition or the table", mismatch)
		}
		if !child.Indexed && len(mismatches) == 0 {
			at.fail("fk_not_indexed", "no index on %s (%s), so every statement reads the whole table: "+
				"create an index on %[1]s (%[2]s)", key.Table, indexColumns(key))
		}
		for _, k := range child.Keepers {
			at.warn("row_trigger", "%s may prevent rows from being deleted or updated, which postpones the "+
				"records of these rows: make sure that the trigger or rule allows both", k)
		}
		for _, column := range child.Generated {
			at.fail("column_generated", "%s is a generated column, which cannot be set (428C9): "+
				"choose a different on_delete", column)
		}
		if child.Unidentified != "" {
			at.fail("replica_identity_missing", "%s is in a publication and has no replica identity, so its rows "+
				"cannot be deleted or updated (55000): add a primary key, or run ALTER TABLE %[1]s REPLICA "+
				"IDENTITY FULL (DEFAULT if the table has a primary key)", child.Unidentified)
		}
		for _, column := range child.NeverNull {
			at.fail("nullify_not_null", "column %s does not allow NULL: drop the NOT NULL constraint, or choose a "+
				"different on_delete", column)
		}
	}
}

// indexColumns returns the columns of an index that would suffice.
func indexColumns(key lfkrepo.Definition) string {
	var columns []string
	for _, c := range key.Conditions {
		columns = append(columns, c.Column)
	}
	return strings.Join(append(columns, key.Columns...), ", ")
}

// pending reports records that no run will ever remove.
func (l *lint) pending(d lfk.Inspected) {
	for _, name := range d.Pending {
		switch children := l.acceptedOf(d, name); {
		case l.hasDefinitions(d, name), l.needsDefinition(d, name):
		case len(children) > 0:
			l.at(d.Name, name).fail("pending_without_definition", "records stay pending, because "+
				"the child tables were accepted as absent: delete the records from "+
				"%s.loose_foreign_keys_deleted_records, or run %s",
				d.Queue.Schema, revokeCommand(children))
		case d.Queue.Managed && d.Tracks(name):
			l.at(d.Name, name).fail("pending_without_definition", "records stay pending, because no definition "+
				"has %s as its parent: add a definition, or run `caretaker lfk untrack "+
				"%s` to delete the records",
				name, format.Argument(name))
		default:
			l.at(d.Name, name).fail("pending_without_definition", "records stay pending, because "+
				"no definition has %s as its parent: add a definition. If the table was renamed or "+
				"is a partition, run `caretaker lfk orphans --fix`, then delete the records from "+
				"%s.loose_foreign_keys_deleted_records", name, d.Queue.Schema)
		}
	}
}
