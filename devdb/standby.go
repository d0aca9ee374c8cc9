package devdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Standby starts a hot standby of the cluster, which streams from it, in a throw-away folder of its
// own. It returns when the standby answers queries. settings win over our own. Roles and passwords
// are the cluster's. It needs no program besides the server's own.
func (c *Cluster) Standby(ctx context.Context, settings map[string]string) (*Cluster, error) {
	if c.attached {
		return nil, errors.New("a shared cluster cannot have a standby: start a cluster with Start")
	}
	// A standby refuses to start with fewer connections than its primary.
	config := Config{Ephemeral: true, Dir: c.throwAwayDir(), Log: c.config.Log, Settings: map[string]string{}}
	maps.Copy(config.Settings, c.config.Settings)
	maps.Copy(config.Settings, map[string]string{
		"hot_standby":      "on",
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s application_name=standby", c.port, superuser, c.password),
	})
	maps.Copy(config.Settings, settings)
	f, err := config.open(ctx, c.owner)
	if err != nil {
		return nil, err
	}
	s := &Cluster{config: config, folder: f, owner: c.owner, password: c.password}
	// Another checkpoint must not remove the log that a standby still has to read.
	err = c.exec(ctx, "ALTER SYSTEM SET wal_keep_size = '512MB'", "SELECT pg_reload_conf()")
	if err == nil {
		err = c.backUp(ctx, s.folder)
	}
	if err == nil {
		err = s.follow(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start a standby: %w", err), os.RemoveAll(f.path), f.close())
	}
	return s, nil
}

// throwAwayDir returns the folder of temporary clusters beside this one, "" for the default.
func (c *Cluster) throwAwayDir() string {
	if c.config.Ephemeral {
		return c.config.Dir
	}
	return ""
}

// follow starts a server on a copy of another one's data, as its standby.
func (c *Cluster) follow(ctx context.Context) error {
	for name, text := range map[string]string{c.folder.file("password"): c.password, filepath.Join(c.folder.data(), "standby.signal"): ""} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), c.owner.own(name)); err != nil {
			return err
		}
	}
	version, err := c.folder.version()
	if err != nil {
		return err
	}
	found, err := c.programs(ctx, version)
	if err != nil {
		return err
	}
	return c.launch(ctx, found)
}

// backUp copies the data of the running server into a folder. It is what pg_basebackup does, which not every
// installation of the server has.
func (c *Cluster) backUp(ctx context.Context, to folder) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	// The end of the session ends a backup that failed.
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	start, stop := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::integer").Scan(&version); err != nil {
		return err
	}
	if version < 150000 {
		start, stop = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return err
	}
	if err := copyData(c.folder.data(), to.data(), c.owner); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return err
	}
	name := filepath.Join(to.data(), "backup_label")
	return errors.Join(os.WriteFile(name, []byte(label), 0o600), c.owner.own(name))
}

// copyData copies a data directory that is in use. Files that vanish meanwhile are in the log that the
// standby replays.
func copyData(from, to string, owner account) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(from, path)
		target := filepath.Join(to, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		case entry.IsDir():
			return errors.Join(os.Mkdir(target, 0o700), owner.own(target))
		case !entry.Type().IsRegular() || leftOut(name):
			return nil
		}
		err = copyFile(path, target)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, owner.own(target))
	})
}

// leftOut reports whether a backup omits a file of the data directory.
func leftOut(name string) bool {
	top, _, _ := strings.Cut(name, string(filepath.Separator))
	return slices.Contains([]string{"postmaster.pid", "postmaster.opts", "pg_wal", "pg_replslot", "pg_stat_tmp", "pg_notify", "pg_subtrans", "pg_dynshmem"}, top) ||
		strings.HasPrefix(filepath.Base(name), "pgsql_tmp")
}

func copyFile(from, to string) error {
	read, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }()
	write, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(write, read)
	return errors.Join(err, write.Close())
}

// Kill ends the server at once, like a power failure. Stop must still be called.
func (c *Cluster) Kill() error { return syscall.Kill(c.server.pid, syscall.SIGKILL) }
