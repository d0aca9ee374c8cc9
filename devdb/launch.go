package devdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// startTimeout limits the server's start, including crash recovery.
const startTimeout = WaitTimeout

// adoptTimeout limits the wait for an earlier server to start or stop.
const adoptTimeout = stopTimeout + 5*time.Second

// version returns the major version that made the data directory, 0 if it is not
// initialised yet.
func (f folder) version() (int, error) {
	text, err := os.ReadFile(filepath.Join(f.data(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the version of the data directory: %w", err)
	}
	version, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s is not a PostgreSQL data directory: %w", f.data(), err)
	}
	return version, nil
}

// initialise runs initdb beside the data directory and renames the result, so that
// an interrupted run leaves nothing half-made.
func (c *Cluster) initialise(ctx context.Context, found programs) error {
	_, _ = fmt.Fprintf(c.config.Log, "Creating a PostgreSQL %d cluster in %s\n", found.version, c.folder.path)
	fresh := c.folder.file("data.new")
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700), c.owner.own(fresh)); err != nil {
		return fmt.Errorf("cannot create the data directory: %w", err)
	}
	args := []string{
		"--pgdata=" + fresh, "--username=" + superuser, "--pwfile=" + c.folder.file("password"),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions",
	}
	if c.config.Ephemeral || c.config.unsafe {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(found.dir, "initdb"), args...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = environment(), "/", c.owner.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run initdb as user %s: %w\n%s", c.owner.name, err, out)
	}
	return os.Rename(fresh, c.folder.data())
}

// adopt takes over the folder's server if one runs, and waits for one that is
// being shut down.
func (c *Cluster) adopt(ctx context.Context) (bool, error) {
	for end := time.Now().Add(adoptTimeout); ; {
		found, ok := c.folder.readPostmaster()
		if !ok || !alive(found.pid) {
			return false, nil
		}
		c.port = found.port
		err := proves(ctx, c.folder, c.URL("postgres"))
		if err == nil {
			_, _ = fmt.Fprintf(c.config.Log, "Taking over the running PostgreSQL of %s (process %d)\n", c.folder.path, found.pid)
			return true, c.watch(ctx, found.pid)
		}
		if !changing(err) || pause(ctx, end) != nil {
			return false, context.Cause(ctx) // another session's pid. If not, the server refuses to start and reports why
		}
	}
}

// watch puts a server that we did not start under a supervisor of ours.
func (c *Cluster) watch(ctx context.Context, pid int) error {
	cmd, hold, err := supervised(ctx, c.folder, c.owner, c.config.Ephemeral, pid)
	if err != nil {
		return err
	}
	c.server.wait(cmd)
	c.server.pid, c.server.hold = pid, hold
	return nil
}

// launch starts the server on the folder's last port, or on other free ones.
func (c *Cluster) launch(ctx context.Context, found programs) error {
	if err := os.Truncate(c.folder.file("postgres.log"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot empty the server's log: %w", err)
	}
	last, _ := os.ReadFile(c.folder.file("port"))
	port, _ := strconv.Atoi(string(last))
	var err error
	for range 5 { // another process may take the port between our look and the start
		if c.port, err = freePort(ctx, port); err != nil {
			return err
		}
		if err = c.try(ctx, found); !errors.Is(err, errPortTaken) {
			break
		}
		port = 0
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(c.config.Log, "PostgreSQL %d listens on 127.0.0.1:%d\n", found.version, c.port)
	if err := os.WriteFile(c.folder.file("port"), []byte(strconv.Itoa(c.port)), 0o600); err != nil {
		return errors.Join(err, c.server.stop(context.WithoutCancel(ctx), c.folder))
	}
	return nil
}

// freePort returns the wanted port of the loopback address if it is free, else
// any that is.
func freePort(ctx context.Context, want int) (int, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(want))
	if err != nil && want != 0 {
		return freePort(ctx, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot find a free port: %w", err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		return 0, fmt.Errorf("cannot find a free port: %w", err)
	}
	return strconv.Atoi(port)
}

var errPortTaken = errors.New("another process has taken the port")

// try starts the server once and waits until it answers.
func (c *Cluster) try(ctx context.Context, found programs) error {
	command := []string{filepath.Join(found.dir, "postgres"), "-D", c.folder.data()}
	settings := c.settings(ctx, found)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		command = append(command, "-c", name+"="+settings[name])
	}
	if len(c.config.Environment) > 0 {
		command = slices.Concat([]string{"env"}, c.config.Environment, command)
	}
	cmd, hold, err := supervised(ctx, c.folder, c.owner, c.config.Ephemeral, 0, command...)
	if err != nil {
		return err
	}
	c.server.wait(cmd)
	c.server.hold = hold
	for end := time.Now().Add(startTimeout); ; {
		err := proves(ctx, c.folder, c.URL("postgres"))
		if err == nil {
			return nil
		}
		select {
		case <-c.server.done:
			return errors.Join(c.failure(), c.server.release())
		default:
		}
		if waitErr := pause(ctx, end); waitErr != nil {
			return errors.Join(fmt.Errorf("the server does not answer: %w (%w), log of the server: %s", err, waitErr, c.log()), c.server.stop(context.WithoutCancel(ctx), c.folder))
		}
	}
}

// failure explains a server that ended during its start by its log.
func (c *Cluster) failure() error {
	text := c.log()
	if strings.Contains(text, "could not create any TCP/IP sockets") {
		return errPortTaken
	}
	return fmt.Errorf("the server ended during startup, log of the server: %s", text)
}

// log returns the end of the server's log.
func (c *Cluster) log() string {
	text, err := os.ReadFile(c.folder.file("postgres.log"))
	if err != nil {
		return "none: " + err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// pause waits briefly, unless ctx or the time has ended.
func pause(ctx context.Context, end time.Time) error {
	if time.Now().After(end) {
		return context.DeadlineExceeded
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}

// changing reports that a server is starting up or shutting down (57P03), or is not listening yet
// or any more.
func changing(err error) bool {
	if known, ok := errors.AsType[*pgconn.PgError](err); ok {
		return known.Code == "57P03"
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
