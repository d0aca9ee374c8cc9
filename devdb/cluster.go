package devdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// superuser owns the cluster and all databases that devdb creates in it.
const superuser = "caretaker"

// Config describes the cluster to start. The zero value is the persistent cluster in the user's
// default folder.
type Config struct {
	// Dir holds everything of the cluster. Empty: caretaker/dev in the user's
	// cache folder (for root /var/lib/caretaker/dev, as the server's user must
	// reach it). An ephemeral cluster gets a new folder in Dir, or, if that is
	// empty, in a temporary place.
	Dir string
	// Ephemeral clusters trade durability for speed and are removed, folder and
	// all, when they stop or their process ends.
	Ephemeral bool
	// unsafe turns off fsync, as for ephemeral clusters, but keeps the folder.
	// Tests use it.
	unsafe bool
	// Log gets one line for each slow step, nil for none.
	Log io.Writer
	// Settings are server settings (postgresql.conf) that override the defaults of devdb.
	Settings map[string]string
	// Environment has variables for the server's process, as NAME=value.
	Environment []string
}

// Cluster is a running PostgreSQL server. Its methods may be called from
// several goroutines.
type Cluster struct {
	config   Config
	folder   folder
	owner    account
	password string
	port     int
	server   server
	// attached means that another process started the server, and stops it.
	attached bool
	// idle has open connections to the maintenance database for the next calls of exec. With nil,
	// none stays open.
	idle chan *pgx.Conn
}

// maxIdle is the number of connections to the maintenance database that stay open.
const maxIdle = 4

// Start returns when the server accepts connections, at once if the folder's
// server still runs from an earlier process. It fails, naming the holder, while
// another process uses the folder. ctx bounds the start alone: a server that is
// up stays up until Stop, or until this process ends in whatever way.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Log == nil {
		config.Log = io.Discard
	}
	owner, err := serverAccount()
	if err != nil {
		return nil, err
	}
	f, err := config.open(ctx, owner)
	if err != nil {
		return nil, err
	}
	c := &Cluster{config: config, folder: f, owner: owner}
	if err := c.start(ctx); err != nil {
		if config.Ephemeral {
			err = errors.Join(err, os.RemoveAll(f.path))
		}
		return nil, errors.Join(err, f.close())
	}
	return c, nil
}

func (config Config) open(ctx context.Context, owner account) (folder, error) {
	switch {
	case config.Ephemeral:
		bases := []string{os.TempDir(), "/tmp", "/var/tmp"}
		if config.Dir != "" {
			bases = []string{config.Dir}
		}
		sweep(ctx, bases, time.Now())
		return tempFolder(bases, owner)
	case config.Dir != "":
		return openFolder(config.Dir, owner)
	case owner.switched:
		return openFolder("/var/lib/caretaker/dev", owner)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return folder{}, fmt.Errorf("cannot determine the default data directory (choose a directory with --data-dir): %w", err)
	}
	return openFolder(filepath.Join(cache, "caretaker", "dev"), owner)
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.password, err = c.folder.password(c.owner); err != nil {
		return err
	}
	adopted, err := c.adopt(ctx)
	if adopted || err != nil {
		return err
	}
	version, err := c.folder.version()
	if err != nil {
		return err
	}
	found, err := c.programs(ctx, version)
	if err != nil {
		return err
	}
	if version == 0 {
		if err := c.initialise(ctx, found); err != nil {
			return err
		}
	}
	return c.launch(ctx, found)
}

// URL returns a connection URL for the named database, for pgx and psql. It contains the password.
func (c *Cluster) URL(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, c.password),
		Host: "127.0.0.1:" + strconv.Itoa(c.port), Path: "/" + database, RawQuery: "sslmode=disable",
	}).String()
}

// Dir returns the folder of the cluster, as an absolute path.
func (c *Cluster) Dir() string { return c.folder.path }

// CreateDatabase creates an empty database unless it exists.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) error {
	if err := c.createDatabase(ctx, name); err != nil {
		return fmt.Errorf("cannot create database %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) createDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	row := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name)
	if err := row.Scan(&exists); err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if known, ok := errors.AsType[*pgconn.PgError](err); ok && known.Code == "42P04" {
		return nil // made by another session in between
	}
	return err
}

// exec runs single statements on the maintenance database.
func (c *Cluster) exec(ctx context.Context, statements ...string) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}
	}
	select {
	case c.idle <- conn:
		return nil
	default:
		return conn.Close(context.WithoutCancel(ctx))
	}
}

// connect returns a working idle connection to the maintenance database, or a new one.
func (c *Cluster) connect(ctx context.Context) (*pgx.Conn, error) {
	for {
		select {
		case conn := <-c.idle:
			if conn.Ping(ctx) == nil {
				return conn, nil
			}
			_ = conn.Close(context.WithoutCancel(ctx))
		default:
			return pgx.Connect(ctx, c.URL("postgres"))
		}
	}
}

// Stop shuts the server down, breaking open connections, and removes an ephemeral cluster's folder.
// A server that has not gone after 20 seconds, or when ctx ends, is stopped without a checkpoint.
// Nothing committed is lost. Stopping twice does nothing.
func (c *Cluster) Stop(ctx context.Context) error {
	if c.attached {
		return nil
	}
	if c.config.unsafe {
		_ = c.tidy(ctx) // the next start repeats it
	}
	err := c.server.stop(ctx, c.folder)
	if c.config.Ephemeral {
		err = errors.Join(err, os.RemoveAll(c.folder.path))
	}
	if closeErr := c.folder.close(); !errors.Is(closeErr, os.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}
