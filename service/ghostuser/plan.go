package ghostuser

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// ghostPlan is what there is to do for a user, by what the databases have at the start of the run.
type ghostPlan struct {
	queue repo.GhostQueue
	// catalogs in the order of the databases, main first.
	catalogs []*repo.Catalog
	steps    []ghostStep
	// schedules says that there is a table of groups marked by users; namespace that there are personal namespaces.
	schedules, namespaces bool
}

// ghostStep is a column that may refer to a user, and what happens to it.
type ghostStep struct {
	catalog       *repo.Catalog
	table, column string
	required      bool
	normal, hard  ghostAction
	// missing is the column without which nobody knows whose the rows are, "" if there is none.
	missing string
	rowsOf  func(user int64) repo.Rows
}

func (s ghostStep) action(hardDelete bool) ghostAction {
	if hardDelete {
		return s.hard
	}
	return s.normal
}

func (s ghostStep) sameColumn(other ghostStep) bool {
	return s.table == other.table && s.column == other.column
}

// String names the column in messages.
func (s ghostStep) String() string { return s.table + "." + s.column }

// newPlan reads the catalogues, one query a database. A database that does not answer is an error.
func (g *ghostMigration) newPlan(ctx context.Context, x *run.Execution) (*ghostPlan, error) {
	p := &ghostPlan{}
	wanted := bulk.ForRemoval(ghostColumns())
	for table, columns := range repo.GhostTables() {
		wanted[table] = append(wanted[table], columns...)
	}
	wanted["group_deletion_schedules"] = append(wanted["group_deletion_schedules"], "user_id", "group_id")
	for _, d := range g.Databases {
		c, err := d.Catalog(ctx, wanted)
		if err != nil {
			return nil, err
		}
		p.catalogs = append(p.catalogs, c)
	}
	main := p.catalogs[0]
	var missing string
	if p.queue, missing = main.GhostQueue(); missing != "" {
		return nil, &run.FailedError{Text: fmt.Sprintf("database main has no %s in the application schema", missing)}
	}
	p.schedules = main.Table("group_deletion_schedules").Has("user_id", "group_id")
	p.namespaces = main.Table("namespaces").Has("owner_id", "type")
	p.addRest(main, p.addLists(ctx, x.Log))
	return p, nil
}

// addLists adds the lines of the lists, and returns those of them that forbid, because nobody can tell whose the rows are.
func (p *ghostPlan) addLists(ctx context.Context, log *slog.Logger) (forbidding []ghostStep) {
	undecided := func(table, column, missing string) {
		log.DebugContext(ctx, "nobody knows what the rows refer to: those who have some stay",
			"table", table, "column", column, "missing", missing)
	}
	for _, line := range append(ghostLists(), personalNamespace(p.namespaces)...) {
		for column := range strings.FieldsSeq(line.columns) {
			step, found := p.step(line, column)
			switch {
			case !found:
				log.DebugContext(ctx, "passed over, it does not exist", "table", line.table, "column", column)
			case step.missing == "":
				p.steps = append(p.steps, step)
			case line.removes() && !slices.ContainsFunc(forbidding, step.sameColumn):
				forbidding = append(forbidding, step)
				undecided(step.table, step.column, step.missing)
			}
		}
	}
	for _, r := range bulk.UntypedReferences(p.catalogs[0]) {
		undecided(r.Table, r.ID, r.Kind)
	}
	return forbidding
}

// personalNamespace is a line for the user's namespace where nobody can tell it from others.
func personalNamespace(known bool) []ghostLine {
	if known {
		return nil
	}
	return []ghostLine{{table: "namespaces", columns: "owner_id", only: ghostCondition{"type", "= 'User'"}, normal: remove, hard: remove}}
}

// step finds a line's column in the database where it is expected, or in main. Rows of which the line deletes only some
// must not be there at all where it cannot be told which.
func (p *ghostPlan) step(line ghostLine, column string) (ghostStep, bool) {
	for _, c := range p.homes(line.database) {
		table := c.Table(line.table)
		found, there := table.Column(column)
		if !there {
			continue
		}
		step := ghostStep{
			catalog: c, table: line.table, column: column, required: found.NotNull, normal: line.normal, hard: line.hard,
		}
		condition := line.only.sql()
		if condition != "" && !table.Has(line.only.column) {
			step.normal, step.hard, step.missing, condition = forbid, forbid, line.only.column, ""
		}
		step.rowsOf = func(user int64) repo.Rows {
			rows, _ := c.Rows(line.table, column, repo.IDs(user)...)
			rows.Condition = condition
			return rows
		}
		return step, true
	}
	return ghostStep{}, false
}

func (p *ghostPlan) homes(database string) []*repo.Catalog {
	i := slices.IndexFunc(p.catalogs, func(c *repo.Catalog) bool { return c.Database.Name == database })
	if i > 0 && database != "" {
		return []*repo.Catalog{p.catalogs[i], p.catalogs[0]}
	}
	return p.catalogs[:1]
}

// addRest adds the foreign keys to users whose column is in no list (section 6.4): first those whose rows go or are
// cleared, then those that forbid, and others that do. The user's own row, and the row of the queue, are no rows that refer
// to the user: they go together, last.
func (p *ghostPlan) addRest(main *repo.Catalog, forbidding []ghostStep) {
	listed := map[string]bool{p.queue.Table().Name + ".user_id": true, "group_deletion_schedules.user_id": true, "namespaces.owner_id": true}
	for table, columns := range ghostColumns() {
		for _, column := range columns {
			listed[table+"."+column] = true
		}
	}
	users := main.Table("users").Table
	for _, key := range main.References(users) {
		column, there := key.Column("id")
		if !there || (key.Child.Schema == users.Schema && listed[key.Child.Name+"."+column.Name]) {
			continue
		}
		step := ghostStep{
			catalog: main, table: key.Child.Name, column: column.Name, required: column.NotNull, normal: forbid, hard: forbid,
			rowsOf: func(user int64) repo.Rows {
				rows := main.Referring(key, "id", repo.IDs(user)...)
				if own := p.ownColumn(users, key.Child); own != "" {
					rows = rows.Except([]repo.Column{{Name: own, Type: "bigint"}}, [][]string{repo.IDs(user)})
				}
				return rows
			},
		}
		switch key.OnDelete {
		case repo.OnDeleteCascade:
			step.normal, step.hard = remove, remove
		case repo.OnDeleteSetNull:
			step.normal, step.hard = nullify, nullify
		default:
			forbidding = append(forbidding, step)
			continue
		}
		p.steps = append(p.steps, step)
	}
	p.steps = append(p.steps, forbidding...)
}

// ownColumn is the column of a table by which a user's own row is known that goes last, "" if the table has no such row.
func (p *ghostPlan) ownColumn(users, table repo.Table) string {
	switch table {
	case users:
		return "id"
	case p.queue.Table():
		return "user_id"
	}
	return ""
}
