package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/scheduler"
)

// serveCommand runs a server until the first SIGINT or SIGTERM.
func serveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		Short:   "Serve the API and run the workers on their schedules",
		GroupID: groupServe,
		Args:    between(0, 0),
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(command.Context())
			defer stop()
			hangups, stopHangups := onHangup()
			defer stopHangups()
			c, err := a.settings()
			if err := errors.Join(err, c.readFiles(), c.checkTLS()); err != nil {
				return err
			}
			i, err := newInstance(ctx, a, c, nil)
			if err != nil {
				return err
			}
			i.hangups = hangups
			return i.run(ctx)
		},
	}
}

// migrateCommand migrates every configured database.
func migrateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "migrate",
		Short:   "Create or update the maintenance schema in every configured database",
		GroupID: groupServe,
		Args:    between(0, 0),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.withDatabases(command, func(ctx context.Context, _ *settings, databases []*repo.Database) error {
				return migrateAll(ctx, a.terminal, databases)
			})
		},
	}
}

// migrated is the result for one database with --output json.
type migrated struct {
	Database string   `json:"database"`
	Applied  []string `json:"applied"`
}

// migrateAll migrates the databases in order, and prints each applied migration. It ends at the
// first error, which names the database.
func migrateAll(ctx context.Context, out *terminal, databases []*repo.Database) error {
	report := []migrated{}
	for _, d := range databases {
		applied, err := scheduler.Migrate(ctx, d)
		report = append(report, migrated{d.Name, append([]string{}, applied...)})
		for _, name := range applied {
			out.text("%s: applied %s", d.Name, name)
		}
		failed, ok := errors.AsType[*dberr.Error](err)
		switch {
		case ok && failed.Refused():
			return connectionRefused(d.Name, failed)
		case ok && strings.Contains(err.Error(), "server refused TLS connection"):
			return fmt.Errorf("%w: change sslmode in databases.%s.url, or enable TLS on the database server",
				err, d.Name)
		case ok && failed.SQLState == "42501":
			return fmt.Errorf("%w: grant CREATE on the database to the role of databases.%s.url, or run "+
				"`caretaker migrate` as the owner of the database or of the maintenance schema", err, d.Name)
		case ok: // The error names the database.
			return err
		case err != nil:
			return fmt.Errorf("cannot migrate %s: %w", d.Name, err)
		}
		if len(applied) == 0 {
			out.text("%s: up to date", d.Name)
		}
	}
	if out.asJSON {
		return out.json(map[string]any{"databases": report})
	}
	return nil
}

// listeners are the listeners of a server. dev opens them before its slow start, so that it reports
// a port in use at once.
type listeners struct {
	api net.Listener
	// metrics and web are nil if they are switched off.
	metrics, web net.Listener
}

// listen opens the configured listeners. Its error has a line for each address that is not
// available, with its configuration key. alternative ends the message for an API address in use.
func listen(ctx context.Context, c *config.Config, alternative string) (l *listeners, err error) {
	l = &listeners{}
	for _, want := range []struct {
		key, address string
		to           *net.Listener
	}{
		{"listen", c.Listen, &l.api},
		{"metrics_listen", c.MetricsListen, &l.metrics},
		{"web_listen", c.WebListen, &l.web},
	} {
		if want.address == "" {
			continue
		}
		listener, failed := new(net.ListenConfig).Listen(ctx, "tcp", want.address)
		if failed == nil {
			*want.to = listener
			continue
		}
		if want.key != "listen" {
			alternative = ", or to an empty value to disable the listener"
		}
		err = errors.Join(err, notListening(want.key, want.address, alternative, failed))
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// notListening returns the error for an unavailable address, and how to fix it.
func notListening(key, address, alternative string, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s (%s): %w", key, config.Variable(key), err)
	}
	return fmt.Errorf("%s: %s is in use by another process, possibly another caretaker: set %[1]s (%[3]s) "+
		"to an address with a free port%[4]s",
		key, address, config.Variable(key), alternative)
}

// close closes the listeners, including those that a server has already closed.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.api, l.metrics, l.web} {
		if one != nil {
			_ = one.Close()
		}
	}
}

// firstWeb and lastWeb limit the ports that dev tries for the status page.
const firstWeb, lastWeb = 8080, 8099

// avoidPortsInUse moves the metrics and the status page of dev to free ports. dev can then run
// beside another dev or a server. dev always has a status page.
func avoidPortsInUse(ctx context.Context, c *config.Config) {
	if c.MetricsListen != "" && probe(ctx, c.MetricsListen) != nil {
		c.MetricsListen = "127.0.0.1:0"
	}
	if c.WebListen != "" {
		return
	}
	for port := firstWeb; port <= lastWeb; port++ {
		if c.WebListen = fmt.Sprintf("127.0.0.1:%d", port); probe(ctx, c.WebListen) == nil {
			return
		}
	}
	c.WebListen = "127.0.0.1:0"
}

// probe returns the error of listening on an address, nil if the address is free.
func probe(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err == nil {
		_ = listener.Close()
	}
	return err
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. A second signal kills
// the process.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// onHangup returns a channel that receives SIGHUP. Until stop is called, SIGHUP does not end the
// process.
func onHangup() (hangups chan os.Signal, stop func()) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}
