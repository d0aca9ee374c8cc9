package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
)

// Lint is what Lint found.
type Lint struct {
	// Findings of the file and the schedule, then of the databases one by one, then of all databases together.
	Findings []Finding `json:"findings"`
	// Errors and Warnings count them.
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	// Unchecked are the databases that could not be looked at.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Lint checks the definitions against every selected database, without changing anything. A database that cannot be
// looked at is in the error; what is missing everywhere is then not known, and not reported. If none could be, there are no
// findings at all.
func (l Admin) Lint(ctx context.Context) (Lint, error) {
	if l.Definitions == nil {
		return Lint{}, errors.New("there are no definitions to check: set workers.loose_foreign_keys_cleanup.definitions to their file")
	}
	check := lint{Admin: l, keys: l.Definitions.Keys}
	check.findings = append(check.findings, l.Definitions.Warnings...)
	if l.Schedule != "" {
		for _, i := range starvedDatabases(l.Schedule, len(l.Databases)) {
			check.add(SeverityWarning, "schedule_starves_database", l.Databases[i].Name, l.Schedule,
				"never fires in a minute in which it is this database's turn: choose one that fires every minute, or set rotation to all")
		}
	}
	err := l.each(ctx, func(d *repo.Database) error {
		inspection, err := lfkadmin.New(d).Inspect(ctx, check.keys)
		if err == nil {
			check.databases = append(check.databases, inspected{d.Name, inspection})
		}
		return err
	})
	if err != nil && len(check.databases) == 0 {
		return Lint{}, err
	}
	check.complete = len(check.databases) == len(l.Databases)
	unchecked := check.unchecked()
	// What keeps main from being looked at has been said.
	if !slices.Contains(unchecked, l.main().Name) {
		accepted, mainErr := l.AbsentChildren(ctx)
		check.accepted, err = accepted, errors.Join(err, mainErr)
	}
	for _, d := range check.databases {
		check.queue(d)
		check.children(d)
		check.foreignKeys(d)
		check.parents(d)
		check.triggers(d)
		check.pending(d)
	}
	check.missing()
	result := check.result()
	result.Unchecked = unchecked
	return result, err
}

// inspected is a database with what was seen there.
type inspected struct {
	name string
	lfkadmin.Inspection
}

// lint is a check at work.
type lint struct {
	Admin
	keys      []repo.LooseForeignKey
	databases []inspected
	// complete: every configured database was looked at, so that what was not seen is nowhere.
	complete bool
	// accepted are the children that were accepted as absent.
	accepted []repo.AbsentChild
	findings []Finding
}

// unchecked are the selected databases that could not be looked at.
func (l *lint) unchecked() (names []string) {
	selected, _ := l.selected()
	for _, d := range selected {
		if !slices.ContainsFunc(l.databases, func(i inspected) bool { return i.name == d.Name }) {
			names = append(names, d.Name)
		}
	}
	return names
}

func (l *lint) add(severity, code, database, object, advice string, args ...any) {
	l.findings = append(l.findings, Finding{severity, code, database, object, fmt.Sprintf(advice, args...)})
}

func (l *lint) result() Lint {
	result := Lint{Findings: append([]Finding{}, l.findings...)}
	for _, f := range l.findings {
		if f.Severity == SeverityError {
			result.Errors++
		} else {
			result.Warnings++
		}
	}
	return result
}

func (l *lint) queue(d inspected) {
	queue := d.Queue.Schema + ".loose_foreign_keys_deleted_records"
	switch {
	case !d.Queue.Exists:
		l.add(SeverityError, "queue_missing", d.name, queue, "run `caretaker lfk install --database %s`", d.name)
	case len(d.QueueFaults) > 0:
		l.add(SeverityError, "queue_shape", d.name, queue, "bring it into GitLab's form: %s", strings.Join(d.QueueFaults, ", "))
	}
	for _, function := range d.OldFunctions {
		l.add(SeverityWarning, "function_old", d.name, d.Queue.Schema+"."+function,
			"is of an older version, which keeps no traces: run `caretaker lfk install --database %s`, which renews it", d.name)
	}
	if !d.ActiveMissing {
		return
	}
	advice := "create the partition, or set the column's default to one that exists"
	if d.Queue.Managed {
		advice = "run the worker on this database: it creates the partition"
	}
	l.add(SeverityError, "default_partition_missing", d.name, queue,
		"every deletion from a tracked table fails, because the default of the column partition names none of its partitions: %s", advice)
}

// children reports what keeps definitions from being carried out, or makes them slow.
func (l *lint) children(d inspected) {
	for i, child := range d.Children {
		if child == nil {
			continue
		}
		key := l.keys[i]
		for _, column := range child.MissingColumns {
			l.add(SeverityError, "column_missing", d.name, key.String(), "%s has no column %s: correct the definition or the table", key.Table, column)
		}
		for _, mismatch := range child.Mismatches {
			l.add(SeverityError, "type_mismatch", d.name, key.String(), "%s: correct the definition or the table", mismatch)
		}
		if !child.Indexed {
			l.add(SeverityError, "fk_not_indexed", d.name, key.String(),
				"create an index on %s (%s): without it every statement reads the whole table", key.Table, indexColumns(key))
		}
		for _, k := range child.Keepers {
			l.add(SeverityWarning, "row_trigger", d.name, key.String(),
				"the %s may keep rows from being deleted or changed, and their records are then put off: make sure that it does not", k)
		}
		if child.NeverNull {
			l.add(SeverityError, "nullify_not_null", d.name, key.String(), "%s cannot become NULL: allow it, or choose another on_delete", key.Column)
		}
	}
}

// indexColumns are those of an index that would do.
func indexColumns(key repo.LooseForeignKey) string {
	var columns []string
	for _, c := range key.Conditions {
		columns = append(columns, c.Column)
	}
	return strings.Join(append(columns, key.Column), ", ")
}

// pending reports records that no run will ever remove.
func (l *lint) pending(d inspected) {
	for _, name := range d.Pending {
		parent, ours := strings.CutPrefix(name, d.Queue.Schema+".")
		switch children := l.acceptedOf(parent); {
		case ours && l.served(parent):
		case ours && len(children) > 0:
			l.add(SeverityError, "pending_without_definition", d.name, name,
				"its records are pending for ever, because its child tables were accepted as absent: delete them from %s.loose_foreign_keys_deleted_records, or %s",
				d.Queue.Schema, revokeCommand(children))
		default:
			l.add(SeverityError, "pending_without_definition", d.name, name,
				"its records are pending for ever: add a definition for it, or delete them from %s.loose_foreign_keys_deleted_records", d.Queue.Schema)
		}
	}
}
