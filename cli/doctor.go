package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/internal/docs"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
)

// finding is a result of a check. Its fields are the fields of --output json.
type finding struct {
	Name string `json:"name"`
	// Database is the configured name, "" for no database or all databases.
	Database string `json:"database"`
	// Status is ok, warning or error.
	Status string `json:"status"`
	// Problem and Remedy are "" if nothing is wrong.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

const statusOK, statusWarning, statusError = "ok", "warning", "error"

// findings collects the results of checks.
type findings []finding

// failed adds a failure, with which doctor exits with 1.
func (f *findings) failed(problem, remedy string) {
	*f = append(*f, finding{Status: statusError, Problem: problem, Remedy: remedy})
}

// warning adds a warning, which does not change the exit code.
func (f *findings) warning(problem, remedy string) {
	*f = append(*f, finding{Status: statusWarning, Problem: problem, Remedy: remedy})
}

// checkTimeout bounds a check.
const checkTimeout = 30 * time.Second

// check inspects one subject and changes nothing. Its error is why the inspection failed.
type check struct {
	name string
	run  func(ctx context.Context, found *findings) error
}

// doctor checks the requirements of a server before one runs. It connects to the databases itself,
// not to a server.
type doctor struct {
	*terminal
	app    *app
	config *settings
	// databases are the databases whose URL can be read, in configuration order.
	databases []*repo.Database
	// service knows the workers' requirements. It is nil if main does not answer or the
	// configuration is wrong.
	service *service.Service
	// facts has the properties of the servers that answer.
	facts map[*repo.Database]repo.ServerFacts
}

// doctorCommand runs the checks, or with --grants only prints SQL. --role and --database are usage
// errors without --grants.
func doctorCommand(a *app) *cobra.Command {
	var grants bool
	var database string
	role := "caretaker"
	command := &cobra.Command{
		Use:     "doctor",
		GroupID: groupServe,
		Short:   "Check the configuration, and whether the databases meet the requirements",
		Args: func(c *cobra.Command, args []string) error {
			for _, name := range []string{"role", "database"} {
				if c.Flags().Changed(name) && !grants {
					return fmt.Errorf("--%s requires --grants", name)
				}
			}
			return between(0, 0)(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			d := &doctor{terminal: a.terminal, app: a, facts: map[*repo.Database]repo.ServerFacts{}}
			defer d.close()
			if grants {
				return d.printGrants(ctx, role, database)
			}
			return d.examine(ctx)
		},
	}
	command.Flags().BoolVar(&grants, "grants", false, "print SQL that grants the required privileges to a role")
	command.Flags().StringVar(&role, "role", role, "role `name` for --grants")
	command.Flags().StringVar(&database, "database", "", "database `name` for --grants (default all)")
	return command
}

// examine runs all checks, whatever earlier checks find.
func (d *doctor) examine(ctx context.Context) error {
	all := runChecks(ctx, "", check{"configuration", d.configuration})
	if d.config != nil {
		all = append(all, d.examineDatabases(ctx)...)
		checks := []check{{"clocks", d.clocks}, {"certificate", d.certificate}, {"ports", d.ports}}
		if !unmigrated(all) {
			checks = append(checks, check{"definitions", d.definitions})
		}
		all = append(all, runChecks(ctx, "", checks...)...)
	}
	number := map[string]int{}
	for _, f := range all {
		number[f.Status]++
	}
	err := d.report(nil, all, func() {
		d.print(all)
		d.println("%s, %s", format.Pluralize(number[statusError], "error"),
			format.Pluralize(number[statusWarning], "warning"))
	})
	if err == nil && number[statusError] > 0 {
		return &exitError{code: exitFailed}
	}
	return err
}

// runChecks runs checks one after another.
func runChecks(ctx context.Context, database string, checks ...check) (all findings) {
	for _, c := range checks {
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		var found findings
		err := c.run(bounded, &found)
		cancel()
		if err != nil {
			found.failed(oneLine(err.Error()), "fix this error, then run `caretaker doctor` again")
		}
		if len(found) == 0 {
			found = findings{{Status: statusOK}}
		}
		for _, f := range found {
			f.Name, f.Database = c.name, cmp.Or(f.Database, database)
			all = append(all, f)
		}
	}
	return all
}

// examinedAtOnce is the number of databases examined concurrently. Each examination queries the
// tables of all databases, and other programs need connections too.
const examinedAtOnce = 3

// examineDatabases connects in order, so that it reports the later of two names for one database.
// It runs no further checks on a database that does not answer.
func (d *doctor) examineDatabases(ctx context.Context) (all findings) {
	var answering []*repo.Database
	for _, database := range d.databases {
		found := runChecks(ctx, database.Name, d.on(database, "connection", d.connection))
		all = append(all, found...)
		if found[0].Status == statusOK {
			answering = append(answering, database)
		}
	}
	all = append(all, runChecks(ctx, "", check{
		"workers", func(_ context.Context, found *findings) error { return d.build(answering, found) },
	})...)
	each := make([]findings, len(answering))
	var work errgroup.Group
	work.SetLimit(examinedAtOnce)
	for i, database := range answering {
		work.Go(func() error {
			each[i] = d.examineDatabase(ctx, database)
			return nil
		})
	}
	_ = work.Wait()
	return append(all, slices.Concat(each...)...)
}

// on returns a check bound to a database.
func (d *doctor) on(
	database *repo.Database, name string,
	run func(context.Context, *repo.Database, *findings) error,
) check {
	return check{name, func(ctx context.Context, found *findings) error {
		return run(ctx, database, found)
	}}
}

// examineDatabase runs the checks of one database in order. The checks after the schema need the
// schema maintenance, and are skipped without it.
func (d *doctor) examineDatabase(ctx context.Context, database *repo.Database) findings {
	var checks []check
	add := func(name string, run func(context.Context, *repo.Database, *findings) error) {
		checks = append(checks, d.on(database, name, run))
	}
	add("tls", d.tls)
	add("version", d.version)
	add("clock", d.clock)
	add("pooler", d.pooler)
	add("replica", d.replica)
	add("application", d.application)
	all := runChecks(ctx, database.Name, checks...)
	if !unmigrated(all) {
		all = append(all, runChecks(ctx, database.Name, d.on(database, "schema", d.schema))...)
	}
	if unmigrated(all) {
		return all
	}
	checks = nil
	add("sequences", d.sequences)
	if d.service != nil {
		add("privileges", d.privileges)
		add("indexes", d.indexes)
	}
	if database.Name == mainDatabase && !database.LooseForeignKeysOnly {
		add("references", d.references)
	}
	return append(all, runChecks(ctx, database.Name, checks...)...)
}

// unmigrated reports whether a database has no schema for the other checks. It may be that of
// another use.
func unmigrated(all findings) bool {
	return slices.ContainsFunc(all, func(f finding) bool {
		return f.Name == "schema" && f.Status == statusError || f.Problem == noUse
	})
}

// configuration reads the configuration and opens its databases.
func (d *doctor) configuration(ctx context.Context, found *findings) error {
	c, err := d.app.settings()
	if err == nil {
		d.config = c
		err = c.readFiles()
	}
	if err != nil {
		for line := range strings.Lines(errorLines(err)) {
			found.failed(strings.TrimSpace(line), "correct the configuration: "+docs.URL("reference/configuration.md"))
		}
	}
	if d.config == nil {
		return nil
	}
	for _, one := range c.Databases {
		database, err := repo.Open(ctx, one.Name, one.URL)
		if err == nil && one.ReplicaURL != "" {
			err = database.UseReplica(ctx, one.ReplicaURL, slog.New(slog.DiscardHandler))
		}
		if err != nil {
			found.failed(err.Error(), "correct the URL: "+docs.URL("guides/managed-postgresql.md"))
		}
		if database != nil {
			database.LooseForeignKeysOnly = c.service.LooseForeignKeysOnly()
			d.databases = append(d.databases, database)
		}
	}
	repo.MustDiffer(d.databases)
	return nil
}

// build creates the service on the databases that answer, and starts nothing.
func (d *doctor) build(databases []*repo.Database, found *findings) (err error) {
	if len(databases) == 0 || databases[0].Name != mainDatabase {
		found.failed("the requirements of the workers were not checked, because main does not answer",
			"fix the connection to main, then run `caretaker doctor` again")
		return nil
	}
	logger := slog.New(slog.DiscardHandler)
	s := d.config.service
	if !s.LooseForeignKeysOnly() {
		queue := scheduler.QueueConfig{Logger: logger}
		if s.Queue, err = scheduler.NewQueue(databases[0], queue); err != nil {
			return err
		}
	}
	s.Databases, s.Logger = databases, logger
	d.service, err = service.New(s)
	return err
}

// mainDatabase is the database name that every configuration has.
const mainDatabase = "main"

// close shuts down the service, if one was started, and then closes all connections.
func (d *doctor) close() {
	if d.service != nil {
		_ = d.service.Shutdown(context.Background())
	}
	for _, database := range d.databases {
		database.Close()
	}
}

// print writes a paragraph for each problem. Then it writes a line for each database with the
// checks that found no problem.
func (d *doctor) print(all []finding) {
	fine := map[string][]string{}
	var databases []string
	commands, file := regexp.MustCompile("`(caretaker [^`]*)`"), d.app.configFile
	for _, f := range all {
		if f.Status == statusOK {
			if fine[f.Database] == nil {
				databases = append(databases, f.Database)
			}
			fine[f.Database] = append(fine[f.Database], f.Name)
			continue
		}
		where := f.Name
		if f.Database != "" {
			where = f.Database + ": " + f.Name
		}
		d.wrap(pageWidth, fmt.Sprintf("%-7s  ", f.Status), where+": "+f.Problem)
		remedy := f.Remedy
		if file != "" { // The commands need the same file.
			remedy = commands.ReplaceAllString(remedy, "`${1} --config "+
				strings.ReplaceAll(format.Argument(file), "$", "$$")+"`")
		}
		d.wrap(pageWidth, "         ", "→ "+remedy)
	}
	for _, name := range databases {
		text := strings.Join(fine[name], ", ")
		if name != "" {
			text = name + ": " + text
		}
		d.wrap(pageWidth, "ok       ", text)
	}
}

// pageWidth is the width of text for people, in characters.
const pageWidth = 80

// unanswered reports why a database does not answer, and the key that may be wrong.
func (f *findings) unanswered(name string, err error) {
	key := "databases." + name + ".url"
	if same, ok := errors.AsType[*dberr.SameDatabaseError](err); ok {
		f.failed(fmt.Sprintf("databases.%s.url points to the same database as databases.%s.url", same.Name, same.First),
			"remove databases."+same.Name+".url")
	} else if refused, ok := errors.AsType[*dberr.Error](err); ok && refused.Refused() {
		f.failed(connectionRefused(name, refused).Error(), "correct "+key)
	} else {
		f.failed(oneLine(err.Error()), "start PostgreSQL, or check the network and the host and port in "+key)
	}
}
