package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
)

// rights finds those that our role lacks.
func (d *doctor) rights(ctx context.Context, database *repo.Database) (found []finding, err error) {
	role := d.facts[database].Role
	needs, err := d.service.Needs(ctx, database)
	if err != nil {
		return nil, err
	}
	grants, err := needs.Grants(ctx)
	if err != nil {
		return nil, err
	}
	lacking, err := database.Lacking(ctx, grants)
	for _, l := range lacking {
		who := ""
		if names := needs.By[l.Table]; len(names) > 0 {
			need := map[bool]string{true: "needs", false: "need"}[len(names) == 1]
			who = ", which " + strings.Join(names, ", ") + " " + need
		}
		if l.Rights != "" {
			found = append(found, failed(fmt.Sprintf("the role %s lacks %s on %s%s",
				role, l.Rights, objectOf(l.Table), who), l.To(role)))
		}
		if l.Hiding {
			found = append(found, failed(fmt.Sprintf("row-level security may hide rows of %s from the "+
				"role %s%s", objectOf(l.Table), role, who), "ALTER ROLE "+role+" BYPASSRLS"))
		}
	}
	if err != nil {
		return found, err
	}
	owner, err := database.RollsQueue(ctx)
	if owner != "" {
		found = append(found, failed("the queue of deleted records belongs to "+owner+": its partitions "+
			"cannot be rolled", fmt.Sprintf("GRANT %s TO %s", owner, role)))
	}
	return found, err
}

// objectOf names a table, or a schema.
func objectOf(t repo.Table) string {
	if t.Name == "" {
		return "schema " + t.Schema
	}
	return t.Schema + "." + t.Name
}

// indexes finds statements that would read whole tables.
func (d *doctor) indexes(
	ctx context.Context, database *repo.Database,
) (found []finding, err error) {
	needs, err := d.service.Needs(ctx, database)
	if err != nil {
		return nil, err
	}
	missing, err := database.Unindexed(ctx, needs.LookUps)
	for _, l := range missing {
		found = append(found, warning(fmt.Sprintf("no index finds rows of %s by %s: statements of "+
			"%s read the whole table", objectOf(l.Table), strings.Join(l.Columns, ", "),
			strings.Join(needs.By[l.Table], ", ")),
			"CREATE INDEX CONCURRENTLY ON "+l.Wanted))
	}
	return found, err
}

// listed are the columns that refer to users and that the lists of ghost_user_migration name.
func (d *doctor) listed() []string { return ghost.ListedColumns() }

// databaseGrants are the statements for one database.
type databaseGrants struct {
	Database string   `json:"database"`
	Grants   []string `json:"grants"`
}

// printGrants prints what gives a role the rights that are needed, in all databases or in one.
func (d *doctor) printGrants(ctx context.Context, role, only string) error {
	found, err := d.configuration(ctx)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		var all []error
		for _, f := range found {
			all = append(all, errors.New(f.Problem))
		}
		return errors.Join(all...)
	}
	var names []string
	for _, database := range d.databases {
		names = append(names, database.Name)
	}
	if only != "" && !slices.Contains(names, only) {
		return usage(fmt.Errorf("--database: there is no %q in the configuration: there are %s",
			only, strings.Join(names, ", ")))
	}
	if _, err = d.build(d.databases); err != nil {
		return err
	}
	if role, err = d.databases[0].Quoted(ctx, role); err != nil {
		return err
	}
	scripts, err := d.grants(ctx, role, only)
	if err != nil {
		return err
	}
	return d.report(nil, scripts, func() { d.describeGrants(scripts, role) })
}

// grants are those of all databases, or of one.
func (d *doctor) grants(ctx context.Context, role, only string) ([]databaseGrants, error) {
	scripts := []databaseGrants{}
	for _, database := range d.databases {
		if only != "" && only != database.Name {
			continue
		}
		needs, err := d.service.Needs(ctx, database)
		if err != nil {
			return nil, err
		}
		all, err := needs.Grants(ctx)
		if err != nil {
			return nil, err
		}
		script := databaseGrants{Database: database.Name}
		for _, g := range all {
			script.Grants = append(script.Grants, g.To(role)+";")
		}
		scripts = append(scripts, script)
	}
	return scripts, nil
}

// describeGrants prints scripts. Each is for a database of its own, perhaps on another server: of
// several the heading says how to get one.
func (d *doctor) describeGrants(scripts []databaseGrants, role string) {
	d.println("-- The rights that caretaker needs with this configuration.\n" +
		"-- Run them as the owner of the tables, behind caretaker migrate; again after the\n" +
		"-- application has got new tables: caretaker doctor says when that is.")
	if len(scripts) > 1 {
		d.println("-- DO NOT RUN ALL OF THIS ON ONE DATABASE: each part below is for its own.\n" +
			"-- caretaker doctor --grants --database NAME prints one part alone.")
	}
	d.println("-- CREATE ROLE %s LOGIN PASSWORD '...';", role)
	for _, s := range scripts {
		d.println("\n-- To be run on the database %s (databases.%s.url), and on no other:",
			s.Database, s.Database)
		for _, grant := range s.Grants {
			d.println("%s", grant)
		}
	}
}
