package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
)

// estate is the database, the servers, and what has been measured of them.
type estate struct {
	options
	progress io.Writer
	program  string
	cluster  *devdb.Cluster
	// conns are ours, for ageing and measuring.
	conns map[string]*pgx.Conn
	// first lives as long as the soak, second is replaced.
	first, second *server
	began         time.Time
	samples       samples
	previous      previous
	// gone is what servers had counted that are no more. replaced is how many.
	gone     figures
	replaced int
	// worked is what all have counted in the end. version is that of PostgreSQL.
	worked  figures
	version string
}

// shop has a queue that caretaker made, and so rolls. The others are GitLab's.
const shop = "shop"

var (
	gitlab    = []string{"main", "ci", "sec"}     //nolint:gochecknoglobals // a constant
	databases = append([]string{shop}, gitlab...) //nolint:gochecknoglobals // a constant
	workers   = []string{                         //nolint:gochecknoglobals // a constant
		"loose_foreign_keys_cleanup", "inactive_token_deletion", "ghost_user_migration", "adjourned_group_deletion",
		"placeholder_user_cleanup",
	}
)

// configuration runs every worker each minute, and waits for less between jobs than is usual.
const configuration = `
listen: 127.0.0.1:0
metrics_listen: 127.0.0.1:0
web_listen: 127.0.0.1:0
log: {format: json}
workers:
  loose_foreign_keys_cleanup: {schedule: "* * * * *", rotation: all, definitions: %q}
  inactive_token_deletion: {schedule: "* * * * *"}
  ghost_user_migration: {schedule: "* * * * *"}
  adjourned_group_deletion: {schedule: "* * * * *", interval: 100ms}
  placeholder_user_cleanup: {schedule: "* * * * *", interval: 100ms}
databases:
`

const (
	shopDefinitions = "order_items:\n  - table: orders\n    column: order_id\n    on_delete: async_delete\n"
	shopSQL         = `
CREATE TABLE orders (id bigserial PRIMARY KEY, customer text);
CREATE TABLE order_items (id bigserial PRIMARY KEY, order_id bigint NOT NULL, product text);
CREATE INDEX ON order_items (order_id)`
)

func (e *estate) say(format string, args ...any) { fmt.Fprintf(e.progress, format+"\n", args...) }

// openEstate builds caretaker, starts PostgreSQL, fills the databases, and starts the servers.
func openEstate(ctx context.Context, o options, progress io.Writer) (_ *estate, err error) {
	e := &estate{options: o, progress: progress, conns: map[string]*pgx.Conn{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(ctx))
		}
	}()
	if e.dir == "" {
		e.dir, err = os.MkdirTemp("", "caretaker-soak")
	} else {
		e.dir, err = filepath.Abs(e.dir)
		err = errors.Join(err, os.MkdirAll(e.dir, 0o700))
	}
	if err != nil {
		return e, err
	}
	e.program = filepath.Join(e.dir, "caretaker")
	if err := e.command(ctx, "go", "build", "-o", e.program, "github.com/caretaker-go/caretaker"); err != nil {
		return e, err
	}
	// Ephemeral clusters do not wait for disks: those are not what is soaked. All else is as usual.
	e.cluster, err = devdb.Start(ctx, devdb.Config{Ephemeral: true, Log: progress})
	if err != nil {
		return e, err
	}
	if err := e.fill(ctx); err != nil {
		return e, err
	}
	if e.first, err = e.startServer(ctx, "server1"); err != nil {
		return e, err
	}
	e.second, err = e.startServer(ctx, "server2")
	e.began = time.Now()
	return e, err
}

// fill makes the databases and the configurations.
func (e *estate) fill(ctx context.Context) (err error) {
	urls := map[string]string{}
	for _, name := range databases {
		if err := e.cluster.CreateDatabase(ctx, name); err != nil {
			return err
		}
		urls[name] = e.cluster.URL(name)
		if e.conns[name], err = pgx.Connect(ctx, urls[name]); err != nil {
			return err
		}
		if name != shop {
			err = devdb.LoadSchema(ctx, urls[name], name)
		} else {
			_, err = e.conns[name].Exec(ctx, shopSQL)
		}
		if err != nil {
			return err
		}
	}
	if err := devdb.LoadDemo(ctx, urls); err != nil {
		return err
	}
	if err := e.conns["main"].QueryRow(ctx, `SHOW server_version`).Scan(&e.version); err != nil {
		return err
	}
	definitions := filepath.Join(e.dir, "definitions.yml")
	if err := os.WriteFile(definitions, []byte(devdb.Definitions()+shopDefinitions), 0o600); err != nil {
		return err
	}
	for _, server := range []string{"server1", "server2"} {
		var text strings.Builder
		fmt.Fprintf(&text, configuration, definitions)
		for _, name := range databases {
			fmt.Fprintf(&text, "  %s: {url: %q}\n", name, urls[name]+"&application_name="+server)
		}
		if err := os.WriteFile(e.config(server), []byte(text.String()), 0o600); err != nil {
			return err
		}
	}
	config := e.config("server1")
	return errors.Join(e.command(ctx, e.program, "migrate", "--config", config),
		e.command(ctx, e.program, "lfk", "install", "--config", config, "--database", shop),
		e.command(ctx, e.program, "lfk", "track", "orders", "--config", config, "--database", shop))
}

func (e *estate) config(server string) string { return filepath.Join(e.dir, server+".yml") }

// command runs a program to its end.
func (e *estate) command(ctx context.Context, program string, args ...string) error {
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, output)
	}
	return nil
}

// replaceServer replaces the second server, which has counted for the last time.
func (e *estate) replaceServer(ctx context.Context) error {
	counted, err := e.second.read(ctx)
	if err != nil {
		return err
	}
	e.gone = counted.plus(e.gone)
	e.replaced++
	if err := e.second.stop(); err != nil {
		return err
	}
	e.second, err = e.startServer(ctx, "server2")
	return err
}

// close ends everything. Logs and samples stay.
func (e *estate) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for _, s := range []*server{e.second, e.first} {
		if s != nil {
			err = errors.Join(err, s.stop())
		}
	}
	for _, conn := range e.conns {
		err = errors.Join(err, conn.Close(ctx))
	}
	if e.cluster != nil {
		err = errors.Join(err, e.cluster.Stop(ctx))
	}
	return errors.Join(err, os.RemoveAll(e.program))
}
