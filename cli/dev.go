package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/docs"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// playground is the PostgreSQL with demo data that dev starts besides the server.
type playground struct {
	cluster *devdb.Cluster
	// urls has the databases' URLs by name.
	urls map[string]string
	// definitions and environment are the files that dev writes for serve, lfk and psql.
	definitions, environment string
}

const (
	devStartTimeout = 5 * time.Minute
	devStopTimeout  = 30 * time.Second
	// trickleInterval is how often dev deletes a few demo rows, so that workers have work.
	trickleInterval = 10 * time.Second
	// remindInterval is how often dev logs its addresses, which have scrolled away by then.
	remindInterval = 5 * time.Minute
)

// demo is what the flags of dev select.
type demo struct {
	dir, listen string
	// tour starts neither scheduled runs nor further deletions.
	tour bool
}

// devCommand starts a server with a database of its own and demo data. It runs until a signal.
func devCommand(a *app) *cobra.Command {
	var d demo
	command := &cobra.Command{
		Use:     "dev",
		Short:   "Start a demo: a server with a private PostgreSQL and demo data",
		GroupID: groupServe,
		Args:    between(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			return develop(ctx, a, d)
		},
	}
	command.Flags().StringVar(&d.dir, "data-dir", "",
		"database `directory`: new, empty, or created by an earlier run of caretaker dev (default "+
			"caretaker/dev in the cache directory, or /var/lib/caretaker/dev for root)")
	command.Flags().StringVar(&d.listen, "listen", "", "server `address` (default: the configured listen address)")
	command.Flags().BoolVar(&d.tour, "tour", false,
		"disable schedules, so that the backlog stays until you start a run")
	return command
}

// develop runs the demo until ctx ends, and then stops its database. It checks settings and ports
// before it starts PostgreSQL.
func develop(ctx context.Context, a *app, d demo) (err error) {
	hangups, stopHangups := onHangup()
	defer stopHangups()
	// 1. Read and check the settings.
	c, err := a.partialSettings()
	if err := errors.Join(err, c.readFiles(), c.checkTLS()); err != nil {
		return err
	}
	if d.listen != "" {
		if err := config.CheckAddress(d.listen, "127.0.0.1:50051"); err != nil {
			return usage(fmt.Errorf("--listen: %w", err))
		}
		c.Listen = d.listen
	}
	c.SchedulerEnabled = c.SchedulerEnabled && !d.tour
	if err := c.Validate(); err != nil {
		return err
	}
	// 2. Open the listeners.
	avoidPortsInUse(ctx, c.Config)
	taken, err := listen(ctx, c.Config, ", or use --listen")
	if err != nil {
		return err
	}
	defer taken.close()
	// 3. Start the database and load the demo data.
	p := &playground{urls: map[string]string{}}
	if p.cluster, err = devdb.Start(ctx, devdb.Config{Dir: d.dir, Log: a.std.Err}); err != nil {
		return fmt.Errorf("cannot start the database: %w", err)
	}
	defer func() { err = errors.Join(err, p.stop(context.WithoutCancel(ctx))) }()
	if err := p.fill(ctx, a.note); err != nil {
		return err
	}
	p.configure(c)
	// 4. Start the server.
	i, err := newInstance(ctx, a, c, taken)
	if err != nil {
		return err
	}
	if err := p.writeEnvironment(c); err != nil {
		i.close()
		return err
	}
	i.hangups = hangups
	// 5. Delete further demo rows from time to time, except in the tour.
	trickling, stopTrickle := context.WithCancel(ctx)
	i.closers = append(i.closers, stopTrickle)
	if !d.tour {
		i.work.Go(func() { devdb.Trickle(trickling, p.urls, trickleInterval, i.logger) })
	}
	i.work.Go(func() { i.remind(trickling, remindInterval) })
	printSummary(a, i, p)
	if d.tour {
		a.println("The schedules are disabled for the tour. To enable the schedules, stop the server and run %s dev.\n", os.Args[0])
	}
	return i.run(ctx)
}

// remind logs the addresses of the demo at each interval, until ctx ends.
func (i *instance) remind(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			i.logger.InfoContext(ctx, "demo ready", "page", "http://"+addressOf(i.listening.web)+"/",
				"address", i.listening.api.Addr().String())
		}
	}
}

// fill creates the databases with the reference schema, demo data and the schema maintenance.
func (p *playground) fill(ctx context.Context, report func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, devStartTimeout)
	defer cancel()
	p.definitions = filepath.Join(p.cluster.Dir(), "loose_foreign_keys.yml")
	if _, err := os.Stat(p.definitions); err == nil {
		report("using the data in %s (remove the directory to start from scratch)", p.cluster.Dir())
	} else {
		report("loading schema and demo data into %s", p.cluster.Dir())
	}
	// 1. Create the databases and load their schema.
	for _, name := range config.GitLabDatabases() {
		if err := p.cluster.CreateDatabase(ctx, name); err != nil {
			return err
		}
		p.urls[name] = p.cluster.URL(name)
		if err := devdb.LoadSchema(ctx, p.urls[name], name); err != nil {
			return err
		}
	}
	// 2. Load the demo data, and create the maintenance schema as caretaker migrate does.
	if err := devdb.LoadDemo(ctx, p.urls); err != nil {
		return err
	}
	for _, name := range config.GitLabDatabases() {
		d, err := repo.Open(ctx, name, p.urls[name])
		if err != nil {
			return err
		}
		_, err = scheduler.Migrate(ctx, d)
		d.Close()
		if err != nil {
			return err
		}
	}
	// 3. Write the definitions of loose foreign keys.
	if err := os.WriteFile(p.definitions, []byte(devdb.Definitions()), 0o600); err != nil {
		return fmt.Errorf("cannot write the sample definitions: %w", err)
	}
	return nil
}

// configure points the settings to the playground.
func (p *playground) configure(c *settings) {
	c.Databases = nil
	for _, name := range config.GitLabDatabases() {
		c.Databases = append(c.Databases, config.Database{Name: name, URL: p.urls[name]})
	}
	keys := service.Settings[lfk.Config](&c.service)
	keys.DefinitionsFile = cmp.Or(keys.DefinitionsFile, p.definitions)
}

// writeEnvironment writes DIR/env with one variable per line. Shells can source the file, and other
// programs can read it as an env file.
func (p *playground) writeEnvironment(c *settings) error {
	var lines strings.Builder
	for _, d := range c.Databases {
		fmt.Fprintf(&lines, "CARETAKER_DATABASES_%s_URL=%s\n", strings.ToUpper(d.Name), quoted(d.URL))
	}
	fmt.Fprintf(&lines, "%s=%s\n", config.Variable("workers."+lfk.Name+".definitions"),
		quoted(service.Settings[lfk.Config](&c.service).DefinitionsFile))
	p.environment = filepath.Join(p.cluster.Dir(), "env")
	temporary := p.environment + ".new"
	err := os.WriteFile(temporary, []byte(lines.String()), 0o600)
	if err == nil {
		err = os.Rename(temporary, p.environment)
	}
	if err != nil {
		return fmt.Errorf("cannot write the environment file: %w", err)
	}
	return nil
}

// quoted quotes a value for a shell. It adds quotes only where a shell needs them, because other
// programs take quotes literally.
func quoted(value string) string {
	if !strings.ContainsAny(value, " \t'\"\\$`&;|<>()*[]#~!{}") {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// stop stops the database and removes the environment file, whose port is no longer valid.
func (p *playground) stop(ctx context.Context) error {
	if p.environment != "" {
		_ = os.Remove(p.environment)
	}
	ctx, cancel := context.WithTimeout(ctx, devStopTimeout)
	defer cancel()
	if err := p.cluster.Stop(ctx); err != nil {
		return fmt.Errorf("cannot stop the database: %w", err)
	}
	return nil
}

// printSummary prints the addresses and files, and commands to start with.
func printSummary(a *app, i *instance, p *playground) {
	address := i.listening.api.Addr().String()
	call := "  grpcurl -plaintext %s%s maintenance.v1.MaintenanceService/%s"
	work := `"worker": "loose_foreign_keys_cleanup", "database": "main"`
	a.println("caretaker %s is ready at %s. To stop it, press Ctrl-C.", version(), address)
	a.println("page      http://%s/", addressOf(i.listening.web))
	a.println("data      %s (remove the directory to start from scratch)", p.cluster.Dir())
	a.println("variables %s (for serve, lfk and psql while this server runs: set -a; . %s; set +a)",
		p.environment, p.environment)
	if metrics := addressOf(i.listening.metrics); metrics != "" {
		a.println("metrics   http://%s/metrics", metrics)
	}
	a.println("\nSome items in the demo data need an operator's decision, " +
		"to show how the status page presents such items.")
	a.println("tour      %s", docs.URL("getting-started/try-the-demo.md"))
	a.println("\nTry, in another terminal:")
	a.println(call, "", address, "GetStatus")
	a.println(call, `-d '{`+work+`, "dry_run": true}' `, address, "RunBatch")
	a.println(call, `-d '{`+work+`}' `, address, "RunBatch")
	a.println(call, "", address, "ListRuns")
	a.println("  %s status --address %s", os.Args[0], address)
	a.println("  %s run loose_foreign_keys_cleanup --database main --address %s\n", os.Args[0], address)
}
