package ghost

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// references are the steps for any user: the lists and the foreign keys. The tables and columns
// must exist at the start of the run.
type references struct {
	queue gitlab.GhostQueue
	// catalogs are in the order of the databases, main first.
	catalogs []*catalog.Catalog
	steps    []*step
	// schedules: main has the table of groups that users have marked for deletion. namespaces:
	// personal namespaces can be distinguished from others.
	schedules, namespaces bool
}

// step is a column that may refer to a user, with its action.
type step struct {
	catalog       *catalog.Catalog
	table, column string
	// required columns are NOT NULL.
	required     bool
	normal, hard action
	// missing is the missing column that would tell whose the rows are, or "".
	missing string
	// rowsOf returns the rows that refer to the user with this id.
	rowsOf func(id int64) rowset.Rows
}

// action returns the step's action, which differs for hard deletion.
func (s *step) action(hardDelete bool) action {
	if hardDelete {
		return s.hard
	}
	return s.normal
}

// sameColumn reports whether both steps work on the same column of the same table.
func (s *step) sameColumn(other *step) bool {
	return s.table == other.table && s.column == other.column
}

// newReferences reads the catalogues, with one query for each database. A database that does not
// answer is an error.
func newReferences(
	ctx context.Context, log *slog.Logger, databases []*repo.Database,
) (*references, error) {
	p := &references{}
	wanted := requiredColumns()
	for _, d := range databases {
		c, err := d.Schema.Catalog(ctx, wanted)
		if err != nil {
			return nil, err
		}
		p.catalogs = append(p.catalogs, c)
	}
	main := p.catalogs[0]
	var missing string
	if p.queue, missing = databases[0].Ghosts.Queue(ctx, main); missing != "" {
		return nil, &fault.FailedError{Text: missing}
	}
	p.complete(ctx, log)
	return p, nil
}

// schedules is the table of groups that users have marked for deletion.
const schedules = "group_deletion_schedules"

// requiredColumns returns the tables and columns that the catalogues must read.
func requiredColumns() map[string][]string {
	wanted := bulk.ForRemoval(listedColumns())
	for table, columns := range gitlab.GhostTables() {
		wanted[table] = append(wanted[table], columns...)
	}
	wanted[schedules] = append(wanted[schedules], "user_id", "group_id")
	return wanted
}

// complete determines the steps from the catalogues and the queue.
func (p *references) complete(ctx context.Context, log *slog.Logger) {
	main := p.catalogs[0]
	p.schedules = main.Table(schedules).Has("user_id", "group_id")
	p.namespaces = main.Table("namespaces").Has("owner_id", "type")
	p.addForeignKeys(p.addLists(ctx, log))
}

// addLists adds the lines of the lists. It returns those that forbid rows because a column that
// would tell whose they are is missing: they come last.
func (p *references) addLists(ctx context.Context, log *slog.Logger) (forbidding []*step) {
	logUndecided := func(table, column, missing string) {
		log.DebugContext(ctx, "column missing, users with rows kept",
			"table", table, "column", column, "missing", missing)
	}
	for _, line := range append(allLists(), p.undecidedNamespaces()...) {
		for column := range strings.FieldsSeq(line.columns) {
			s, found := p.stepOf(line, column)
			switch {
			case !found:
				log.DebugContext(ctx, "missing reference skipped", "table", line.table, "column", column)
			case s.missing == "":
				p.steps = append(p.steps, s)
			case line.removes() && !slices.ContainsFunc(forbidding, s.sameColumn):
				forbidding = append(forbidding, s)
				logUndecided(s.table, s.column, s.missing)
			}
		}
	}
	for _, r := range bulk.UntypedReferences(p.catalogs[0]) {
		logUndecided(r.Table, r.ID, r.Kind)
	}
	return forbidding
}

// undecidedNamespaces returns a line that forbids all namespaces of the user if the column that
// marks the personal one is missing.
func (p *references) undecidedNamespaces() []listLine {
	if p.namespaces {
		return nil
	}
	return both(remove, []listLine{
		{table: "namespaces", columns: "owner_id", only: condition{"type", "= 'User'"}},
	})
}

// stepOf finds a line's column. If the column of the line's condition is missing, the affected rows
// are unknown: then the line forbids all of them.
func (p *references) stepOf(line listLine, column string) (s *step, found bool) {
	c := catalog.Containing(p.catalogs, line.database, line.table)
	if c == nil {
		return nil, false
	}
	table := c.Table(line.table)
	described, found := table.Column(column)
	s = &step{
		catalog: c, table: line.table, column: column, required: described.NotNull,
		normal: line.normal, hard: line.hard,
	}
	condition := line.only.sql()
	if condition != "" && !table.Has(line.only.column) {
		s.normal, s.hard, s.missing, condition = forbid, forbid, line.only.column, ""
	}
	s.rowsOf = func(id int64) rowset.Rows {
		rows, _ := rowset.RowsOf(c, line.table, column, rowset.IDs(id)...)
		rows.Condition = condition
		return rows
	}
	return s, found
}

// addForeignKeys adds the foreign keys to users that no list names. Those whose rows are removed or
// cleared come first, then those that forbid rows, with the forbidding lines of the lists.
func (p *references) addForeignKeys(forbidding []*step) {
	main := p.catalogs[0]
	users := main.Table("users").Table
	listed := p.listed()
	for _, key := range main.References(users) {
		column, ok := key.Column("id")
		known := key.Child.Schema == users.Schema && listed[key.Child.Name+"."+column.Name]
		if !ok || known {
			continue
		}
		s := &step{
			catalog: main, table: key.Child.Name, column: column.Name, required: column.NotNull,
			rowsOf: func(id int64) rowset.Rows { return p.referring(key, id) },
		}
		switch key.OnDelete {
		case catalog.OnDeleteCascade:
			s.normal, s.hard = remove, remove
		case catalog.OnDeleteSetNull:
			s.normal, s.hard = nullify, nullify
		default:
			s.normal, s.hard = forbid, forbid
			forbidding = append(forbidding, s)
			continue
		}
		p.steps = append(p.steps, s)
	}
	p.steps = append(p.steps, forbidding...)
}

// listed returns the columns, as table.column, to skip among the foreign keys: those of the lists,
// and those handled when the user is deleted.
func (p *references) listed() map[string]bool {
	listed := map[string]bool{
		p.queue.Table().Name + ".user_id":  true,
		"group_deletion_schedules.user_id": true,
		"namespaces.owner_id":              true,
	}
	for table, columns := range listedColumns() {
		for _, column := range columns {
			listed[table+"."+column] = true
		}
	}
	return listed
}

// referring returns the rows that refer to a user by a foreign key. The user's own row and the row
// of the queue are excluded. Those two are deleted together, last.
func (p *references) referring(key catalog.ForeignKey, id int64) rowset.Rows {
	main := p.catalogs[0]
	rows := rowset.Referring(main, key, "id", rowset.IDs(id)...)
	var own string
	switch key.Child {
	case main.Table("users").Table:
		own = "id"
	case p.queue.Table():
		own = "user_id"
	default:
		return rows
	}
	return rows.Except([]catalog.Column{{Name: own, Type: "bigint"}}, [][]string{rowset.IDs(id)})
}
