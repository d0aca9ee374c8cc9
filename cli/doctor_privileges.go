package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
)

// privileges checks the privileges of the configured role.
func (d *doctor) privileges(ctx context.Context, database *repo.Database, found *findings) error {
	role := d.facts[database].Role
	needs, err := d.service.Needs(ctx, database)
	if err != nil {
		return err
	}
	grants, err := needs.Grants(ctx)
	if err != nil {
		return err
	}
	missing, err := database.Schema.MissingGrants(ctx, grants)
	for _, m := range missing {
		who := ""
		if names := needs.By[m.Table]; len(names) > 0 {
			who = " (required by " + strings.Join(names, ", ") + ")"
		}
		if m.Rights != "" {
			found.failed(fmt.Sprintf("the role %s is missing %s on %s%s",
				role, m.Rights, objectOf(m.Table), who), m.To(role))
		}
		if m.Hiding {
			found.failed(fmt.Sprintf("row-level security may hide rows of %s%s from the "+
				"role %s", objectOf(m.Table), who, role), "ALTER ROLE "+role+" BYPASSRLS")
		}
	}
	if err != nil {
		return err
	}
	owner, err := database.Queue.RollsQueue(ctx)
	if owner != "" {
		found.warning("the queue belongs to the role "+owner+", so caretaker cannot add and drop the "+
			"queue's partitions: all records stay in one partition, and only VACUUM makes its space reusable",
			fmt.Sprintf("GRANT %s TO %s, or monitor autovacuum of the queue", owner, role))
	}
	return err
}

// objectOf returns the text for a table or a schema.
func objectOf(t catalog.Table) string {
	if t.Name == "" {
		return "schema " + t.Schema
	}
	return t.Schema + "." + t.Name
}

// indexes checks for statements that would read whole tables because an index is missing.
func (d *doctor) indexes(ctx context.Context, database *repo.Database, found *findings) error {
	needs, err := d.service.Needs(ctx, database)
	if err != nil {
		return err
	}
	missing, err := database.Schema.Unindexed(ctx, needs.Lookups)
	for _, l := range missing {
		found.warning(fmt.Sprintf("%s has no index on %s, so statements of "+
			"%s read the whole table", objectOf(l.Table), strings.Join(l.Columns, ", "),
			strings.Join(needs.By[l.Table], ", ")),
			"CREATE INDEX CONCURRENTLY ON "+l.Index)
	}
	return err
}

// databaseGrants has the statements for one database.
type databaseGrants struct {
	Database string   `json:"database"`
	Grants   []string `json:"grants"`
}

// printGrants prints the statements that give a role its permissions, in all databases or only one.
func (d *doctor) printGrants(ctx context.Context, role, only string) error {
	var found findings
	err := d.configuration(ctx, &found)
	for _, f := range found {
		err = errors.Join(err, errors.New(f.Problem))
	}
	if err != nil {
		return err
	}
	var names []string
	for _, database := range d.databases {
		names = append(names, database.Name)
	}
	if only != "" && !slices.Contains(names, only) {
		return usage(fmt.Errorf("--database: %q is not in the configuration: the configured databases are %s%s",
			only, strings.Join(names, ", "), format.DidYouMean(only, names)))
	}
	if err := d.build(d.databases, &found); err != nil {
		return err
	}
	if role, err = d.databases[0].Schema.Quoted(ctx, role); err != nil {
		return err
	}
	scripts := []databaseGrants{}
	for _, database := range d.databases {
		if only != "" && only != database.Name {
			continue
		}
		needs, err := d.service.Needs(ctx, database)
		if err != nil {
			return err
		}
		all, err := needs.Grants(ctx)
		if err != nil {
			return err
		}
		script := databaseGrants{Database: database.Name}
		for _, g := range all {
			script.Grants = append(script.Grants, g.To(role)+";")
		}
		scripts = append(scripts, script)
	}
	return d.report(nil, scripts, func() { d.describeGrants(scripts, role) })
}

// describeGrants prints the scripts. Each script is for one database, which may be on its own
// server. With several scripts, the heading shows how to print only one.
func (d *doctor) describeGrants(scripts []databaseGrants, role string) {
	d.println("-- These statements grant the privileges that caretaker requires with this configuration.\n" +
		"-- Run them as the owner of the tables, after `caretaker migrate`. Run them again when\n" +
		"-- the application has new tables: `caretaker doctor` reports missing privileges.")
	if len(scripts) > 1 {
		d.println("-- DO NOT RUN ALL OF THIS ON ONE DATABASE: each part is for one database.\n" +
			"-- `caretaker doctor --grants --database NAME` prints one part.")
	}
	d.println("-- CREATE ROLE %s LOGIN PASSWORD '...';", role)
	for _, s := range scripts {
		d.println("\n-- For the database %s only (databases.%s.url):", s.Database, s.Database)
		for _, grant := range s.Grants {
			d.println("%s", grant)
		}
	}
}
