package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// finding is what one check has found. Its fields are those of --output json.
type finding struct {
	Name string `json:"name"`
	// Database is the configured name, "" for what concerns none or all.
	Database string `json:"database"`
	// Status is ok, warning or error.
	Status string `json:"status"`
	// Problem is what is wrong, Remedy what to do; both "" if nothing is.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

const (
	statusOK      = "ok"
	statusWarning = "warning"
	statusError   = "error"
)

func failed(problem, remedy string) finding {
	return finding{Status: statusError, Problem: problem, Remedy: remedy}
}

func warning(problem, remedy string) finding {
	return finding{Status: statusWarning, Problem: problem, Remedy: remedy}
}

// checkTime bounds a check.
const checkTime = 30 * time.Second

// check is one thing to look at. It changes nothing. An error is what kept it from looking.
type check struct {
	name string
	look func(ctx context.Context) ([]finding, error)
}

// doctor checks what a server needs before there is one. It is no client: it connects to the
// databases.
type doctor struct {
	*app
	config *settings
	// databases are those whose URL can be read, in the order of the configuration.
	databases []*repo.Database
	// service knows what the workers need; nil: main does not answer, or the configuration is wrong.
	service *service.Service
	// facts are those of the servers that answer.
	facts map[*repo.Database]repo.ServerFacts
}

func (a *app) doctor() *cobra.Command {
	var grants bool
	var database string
	role := "caretaker"
	command := &cobra.Command{
		Use:     "doctor",
		GroupID: groupServe,
		Short:   "Check the configuration, the databases and what caretaker needs of them",
		Long: "Check the configuration, the databases and what caretaker needs of them, without\n" +
			"changing anything: connections, versions, clocks, schema, rights, definitions,\n" +
			"triggers, indexes, replicas, poolers, ports. What is wrong comes with a remedy.\n" +
			"Exits with 1 if there are errors, with 0 if there are only warnings.\n\n" +
			"With --grants it prints the statements that give a role the rights that the\n" +
			"configured workers and their jobs need, and no others. Each database has a part of\n" +
			"its own: with --database it prints that part alone, to be run there.",
		Args: func(c *cobra.Command, args []string) error {
			for _, name := range []string{"role", "database"} {
				if c.Flags().Changed(name) && !grants {
					return fmt.Errorf("--%s is for --grants: give both", name)
				}
			}
			return between(0, 0)(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			d := &doctor{app: a, facts: map[*repo.Database]repo.ServerFacts{}}
			defer d.close()
			if grants {
				return d.printGrants(ctx, role, database)
			}
			return d.examine(ctx)
		},
	}
	command.Flags().BoolVar(&grants, "grants", false, "print the rights that a role needs, as SQL")
	command.Flags().StringVar(&role, "role", role, "`name` of the role, with --grants")
	command.Flags().StringVar(&database, "database", "",
		"`name` of the database whose part is printed, with --grants; default all")
	return command
}

// examine runs all checks, whatever the others find.
func (d *doctor) examine(ctx context.Context) error {
	findings := d.runChecks(ctx, "", []check{{"configuration", d.configuration}})
	if d.config != nil {
		findings = append(findings, d.examineDatabases(ctx)...)
		findings = append(findings, d.runChecks(ctx, "", []check{
			{"clocks", d.clocks},
			{"definitions", d.definitions},
			{"certificate", d.certificate},
			{"ports", d.ports},
		})...)
	}
	return d.conclude(findings)
}

// conclude prints the findings.
func (d *doctor) conclude(findings []finding) error {
	errs, warnings := 0, 0
	for _, f := range findings {
		switch f.Status {
		case statusError:
			errs++
		case statusWarning:
			warnings++
		}
	}
	err := d.report(nil, findings, func() {
		d.print(findings)
		d.println("%s, %s", run.Pluralize(errs, "error"), run.Pluralize(warnings, "warning"))
	})
	if err == nil && errs > 0 {
		return &exitError{code: exitFailed}
	}
	return err
}

// runChecks runs checks one after the other.
func (d *doctor) runChecks(ctx context.Context, database string, checks []check) (all []finding) {
	for _, c := range checks {
		bounded, cancel := context.WithTimeout(ctx, checkTime)
		found, err := c.look(bounded)
		cancel()
		if err != nil {
			found = append(found, failed(oneLine(err.Error()), "mend that, then look again"))
		}
		if len(found) == 0 {
			found = []finding{{Status: statusOK}}
		}
		for _, f := range found {
			f.Name = c.name
			if f.Database == "" {
				f.Database = database
			}
			all = append(all, f)
		}
	}
	return all
}

// examinedAtOnce is how many databases are examined side by side: who examines one asks all of them
// where tables are, and servers have connections for more than this command.
const examinedAtOnce = 3

// examineDatabases looks whether they answer, in order, so that of two names for one database the
// later is found out. What does not answer is not looked at any further.
func (d *doctor) examineDatabases(ctx context.Context) (findings []finding) {
	var answering []*repo.Database
	for _, database := range d.databases {
		found := d.runChecks(ctx, database.Name, []check{{
			"connection",
			func(ctx context.Context) ([]finding, error) { return d.connection(ctx, database) },
		}})
		findings = append(findings, found...)
		if found[0].Status == statusOK {
			answering = append(answering, database)
		}
	}
	findings = append(findings, d.runChecks(ctx, "", []check{{
		"workers", func(context.Context) ([]finding, error) { return d.build(answering) },
	}})...)
	all := make([][]finding, len(answering))
	turns := make(chan struct{}, examinedAtOnce)
	var work sync.WaitGroup
	for i, database := range answering {
		work.Go(func() {
			turns <- struct{}{}
			all[i] = d.examineDatabase(ctx, database)
			<-turns
		})
	}
	work.Wait()
	return append(findings, slices.Concat(all...)...)
}

func (d *doctor) examineDatabase(ctx context.Context, database *repo.Database) []finding {
	on := func(
		look func(context.Context, *repo.Database) ([]finding, error),
	) func(context.Context) ([]finding, error) {
		return func(ctx context.Context) ([]finding, error) { return look(ctx, database) }
	}
	checks := []check{
		{"tls", on(d.tls)},
		{"version", on(d.version)},
		{"clock", on(d.clock)},
		{"pooler", on(d.pooler)},
		{"replica", on(d.replica)},
		{"schema", on(d.schema)},
		{"application", on(d.application)},
		{"sequences", on(d.sequences)},
	}
	if d.service != nil {
		checks = append(checks, check{"rights", on(d.rights)}, check{"indexes", on(d.indexes)})
	}
	if database.Name == mainDatabase && !database.LooseForeignKeysOnly {
		checks = append(checks, check{"references", on(d.references)})
	}
	return d.runChecks(ctx, database.Name, checks)
}

// configuration reads it, and opens what it names.
func (d *doctor) configuration(ctx context.Context) (found []finding, err error) {
	c, err := d.settings()
	if err == nil {
		d.config = c
		err = c.readFiles()
	}
	for line := range strings.Lines(errorText(err)) {
		found = append(found,
			failed(strings.TrimSpace(line), "correct the configuration (docs/configuration.md)"))
	}
	if d.config == nil {
		return found, nil
	}
	for _, one := range c.Databases {
		database, err := repo.Open(ctx, one.Name, one.URL)
		if err == nil && one.ReplicaURL != "" {
			err = database.UseReplica(ctx, one.ReplicaURL, slog.New(slog.DiscardHandler))
		}
		if err != nil {
			found = append(found, failed(err.Error(), "correct the URL (docs/databases.md)"))
		}
		if database != nil {
			database.LooseForeignKeysOnly = c.service.LooseForeignKeysOnly()
			d.databases = append(d.databases, database)
		}
	}
	repo.MustDiffer(d.databases)
	return found, nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// build makes the service on the databases that answer. Nothing of it is started.
func (d *doctor) build(databases []*repo.Database) (_ []finding, err error) {
	if len(databases) == 0 || databases[0].Name != mainDatabase {
		return []finding{failed("what the workers need was not checked: main does not answer",
			"mend that, then look again")}, nil
	}
	logger := slog.New(slog.DiscardHandler)
	s := d.config.service
	if !s.LooseForeignKeysOnly() {
		queue := scheduler.QueueConfig{Logger: logger}
		if s.Queue, err = scheduler.NewQueue(databases[0], queue); err != nil {
			return nil, err
		}
	}
	s.Databases, s.Logger = databases, logger
	d.service, err = service.New(s)
	return nil, err
}

// mainDatabase is the name that every configuration has.
const mainDatabase = "main"

func (d *doctor) close() {
	if d.service != nil {
		_ = d.service.Shutdown(context.Background())
	}
	for _, database := range d.databases {
		database.Close()
	}
}

// print writes what is wrong, then in few lines what is not.
func (d *doctor) print(findings []finding) {
	fine := map[string][]string{}
	var databases []string
	for _, f := range findings {
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
		d.wrap(pageWidth, "         ", "→ "+f.Remedy)
	}
	for _, name := range databases {
		text := strings.Join(fine[name], ", ")
		if name != "" {
			text = name + ": " + text
		}
		d.wrap(pageWidth, "ok       ", text)
	}
}

// pageWidth is how wide text for people is, in characters.
const pageWidth = 80

// unanswered is why a database does not answer, with the key that may be wrong.
func unanswered(name string, err error) finding {
	key := "databases." + name + ".url"
	if same, ok := errors.AsType[*repo.SameDatabaseError](err); ok {
		return failed(same.Error(), "leave it out (docs/databases.md)")
	}
	if refused, ok := errors.AsType[*repo.Error](err); ok && refused.Refused() {
		return failed(connectionRefused(name, refused).Error(), "correct "+key)
	}
	return failed(oneLine(err.Error()), "start the server, or correct host, port and network: "+key)
}
