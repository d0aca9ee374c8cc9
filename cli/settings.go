package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// settings has the whole configuration: of the process, and of the service with its workers.
type settings struct {
	*config.Config
	service service.Config
}

// settings reads the file of --config and the environment.
func (a *app) settings() (s *settings, err error) {
	s = &settings{}
	s.Config, err = a.std.Env.Load(a.configFile, &s.service)
	return s, err
}

// partialSettings is settings for commands that open their own databases or use none.
func (a *app) partialSettings() (s *settings, err error) {
	s = &settings{}
	s.Config, err = a.std.Env.LoadPartial(a.configFile, &s.service)
	return s, err
}

// readFiles reads the files that a server requires, apart from those of checkTLS. It reports their
// mistakes together with the mistakes in the configuration.
func (s *settings) readFiles() error {
	_, tokenErr := s.access(nil)
	var definitionsErr error
	if keys := service.Settings[lfk.Config](&s.service); keys.DefinitionsFile != "" {
		keys.Definitions, definitionsErr = lfk.LoadDefinitions(keys.DefinitionsFile)
	}
	return errors.Join(tokenErr, definitionsErr)
}

// checkTLS reads the files of certificates and keys.
func (s *settings) checkTLS() (err error) {
	if s.TLS.KeyFile != "" { // The configuration requires it with a certificate.
		_, err = s.tls().TLS()
	}
	return err
}

// tls returns the server's TLS settings.
func (s *settings) tls() server.Config {
	return server.Config{
		CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile, ClientCAFile: s.TLS.ClientCAFile,
	}
}

// access returns the configured permissions. Its error names the wrong file.
func (s *settings) access(logger *slog.Logger) (*access.Keys, error) {
	return access.New(access.Config{
		Token: s.Auth.Token, TokenFile: s.Auth.TokenFile, TokensFile: s.Auth.TokensFile,
		Certificates: s.Auth.Certificates, Workers: workerNames(), Logger: logger,
	})
}

// workerNames returns the names of all workers.
func workerNames() (names []string) {
	for section := range new(service.Config).Sections() {
		names = append(names, strings.TrimPrefix(section, "workers."))
	}
	return names
}

// databases opens the configured databases in rotation order. Two names for one database are an
// error. A database that does not answer is compared when it first answers.
func databases(ctx context.Context, c *settings) (open []*repo.Database, closeAll func(), err error) {
	closeAll = func() {
		for _, d := range open {
			d.Close()
		}
	}
	for _, d := range c.Databases {
		database, openErr := repo.Open(ctx, d.Name, d.URL)
		if openErr == nil {
			database.LooseForeignKeysOnly = c.service.LooseForeignKeysOnly()
			open = append(open, database)
		}
		err = errors.Join(err, openErr)
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	repo.MustDiffer(open)
	for _, d := range open {
		pingErr := d.Ping(ctx)
		if same, ok := errors.AsType[*dberr.SameDatabaseError](pingErr); ok {
			err = same
		} else if d.Name == mainDatabase && pingErr == nil {
			err = checkUse(ctx, c, d)
		}
		if err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	return open, closeAll, nil
}

// noUse and setUse are the problem of a main without GitLab's tables, and its remedy.
const (
	noUse  = "`use` is not set, and the database main has no GitLab tables"
	setUse = "add the line `use: " + service.UseLooseForeignKeys + "` to the configuration, " +
		"or set CARETAKER_USE=" + service.UseLooseForeignKeys + " (or `gitlab`, if GitLab creates its tables later)"
)

// checkUse refuses a configuration without use for a main without GitLab's tables.
func checkUse(ctx context.Context, c *settings, main *repo.Database) error {
	if c.service.Use != "" {
		return nil
	}
	if is, err := main.LooksLikeGitLab(ctx); is || err != nil {
		return nil //nolint:nilerr // an error of the database is for the command to report
	}
	return fmt.Errorf("%s: %s", noUse, setUse)
}

// withDatabases opens the configured databases for do. A signal ends the context of do.
func (a *app) withDatabases(c *cobra.Command, do func(context.Context, *settings, []*repo.Database) error) error {
	ctx, stop := untilSignal(c.Context())
	defer stop()
	configuration, err := a.settings()
	if err != nil {
		return err
	}
	open, closeAll, err := databases(ctx, configuration)
	if err != nil {
		return err
	}
	defer closeAll()
	return do(ctx, configuration, open)
}

// checkMigrated checks the schema maintenance. In main it also checks the tables of the job queue.
func checkMigrated(ctx context.Context, d *repo.Database) error {
	if err := d.CheckMigrated(ctx); err != nil || d.Name != "main" || d.LooseForeignKeysOnly {
		return err
	}
	return scheduler.CheckQueueMigrated(ctx, d)
}

// connectionRefused names the key whose URL is wrong or whose user has no permission.
func connectionRefused(name string, refused *dberr.Error) error {
	key := "databases." + name + ".url"
	return fmt.Errorf("%s (%s): %s: %w", key, config.Variable(key), refused.Why(), refused.Cause())
}

// useReplicas connects the databases to their read replicas. It logs a wrong replica URL as a
// warning.
func (i *instance) useReplicas(ctx context.Context, c *config.Config) {
	for n, d := range i.databases { // in the order of the configuration
		if url := c.Databases[n].ReplicaURL; url != "" {
			err := d.UseReplica(ctx, url, i.logger)
			i.logWarning("replica rejected, reading from the primary", err, "database", d.Name)
		}
	}
}

// checkDatabases refuses databases that are not migrated or that refuse the connection. It warns of
// unreachable databases, unreadable replicas, and poolers that require a URL parameter.
func (i *instance) checkDatabases(ctx context.Context) error {
	var missing []string
	for _, d := range i.databases {
		err := checkMigrated(ctx, d)
		refused, ok := errors.AsType[*dberr.Error](err)
		switch {
		case err == nil:
			i.logWarning("pooler without the required URL parameter", d.CheckPooler(ctx),
				"database", d.Name)
			i.logWarning("replica unusable at startup, reading from the primary", d.CheckReplica(ctx),
				"database", d.Name)
			if queue, err := d.Queue.DeletedRecords(ctx); err == nil && !queue.Exists {
				i.logger.WarnContext(ctx, "queue of deleted parents missing", "database", d.Name)
			}
		case ok && refused.Refused():
			return connectionRefused(d.Name, refused)
		case errors.Is(err, dberr.ErrUnreachable):
			i.logWarning("database unreachable at startup, retrying", err, "database", d.Name)
		case errors.Is(err, dberr.ErrNotMigrated):
			missing = append(missing, d.Name)
		default:
			return fmt.Errorf("cannot check database %s: %w", d.Name, err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the maintenance schema is missing or outdated in %s: run `caretaker "+
			"migrate` with the same configuration, then restart the server", format.List(missing))
	}
	return nil
}

// watchInterval is how often a database is checked. The first checks of an unreachable database are
// more frequent.
const watchInterval = 5 * time.Second

// watchDatabase logs when a database becomes unusable, usable again, or not migrated. It only logs,
// because each user of the database retries on its own.
func (i *instance) watchDatabase(ctx context.Context, d *repo.Database) {
	pace := run.Backoff{First: time.Second, Most: watchInterval}
	logged, migrated := "usable", false
	for {
		if d == i.databases[0] {
			now := time.Now()
			i.mainChecked.Store(&now)
		}
		err := d.StillWritable(ctx)
		if err == nil && !migrated {
			err = checkMigrated(ctx, d)
			migrated = err == nil
		}
		if ctx.Err() != nil {
			return
		}
		logged = i.logDatabase(ctx, d, err, logged)
		wait, _ := pace.After(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(wait, watchInterval)):
		}
	}
}

// logDatabase returns the state of a database, and logs a state that differs from the last logged
// one.
func (i *instance) logDatabase(
	ctx context.Context, d *repo.Database, err error, logged string,
) (state string) {
	logger := i.logger.With("database", d.Name)
	switch {
	case err == nil:
		if state = "usable"; state != logged {
			logger.InfoContext(ctx, "database usable")
		}
	case errors.Is(err, dberr.ErrNotMigrated):
		if state = "not migrated"; state != logged {
			logger.ErrorContext(ctx, "database not migrated", "error", err.Error())
		}
	default:
		state = "failing"
		if errors.Is(err, dberr.ErrUnreachable) {
			state = "unreachable"
		}
		if state != logged {
			logger.WarnContext(ctx, "database not usable, retrying", "error", err.Error())
		}
	}
	return state
}

// eachDatabase opens all configured databases, or only the named one, for do. keep is how long
// receipts are kept.
func (a *app) eachDatabase(
	c *cobra.Command, name string,
	do func(ctx context.Context, d *repo.Database, keep time.Duration) error,
) error {
	return a.withDatabases(c, func(ctx context.Context, s *settings, open []*repo.Database) error {
		found, names := false, []string(nil)
		for _, d := range open {
			names = append(names, d.Name)
			if name != "" && name != "all" && name != d.Name {
				continue
			}
			found = true
			if err := d.CheckMigrated(ctx); err != nil {
				return fmt.Errorf("%w: run `caretaker migrate` first", err)
			}
			if err := do(ctx, d, s.service.Receipts.Keep); err != nil {
				return err
			}
		}
		if !found {
			return usage(fmt.Errorf("database %q is not in the configuration%s", name,
				format.DidYouMean(name, names)))
		}
		return nil
	})
}
