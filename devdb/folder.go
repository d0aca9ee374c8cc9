package devdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folder is what a cluster has on disk:
//
//	lock          locked while a process uses the folder; holds its pid
//	password      of the superuser
//	port          the last one, taken again if it is free
//	postgres.log  the server's own log, since its last start
//	data/         PostgreSQL's data directory
type folder struct {
	path string
	lock *os.File
}

// ephemeralPattern names throw-away folders, so that sweep finds them.
const ephemeralPattern = "caretaker-postgres-*"

func (f folder) data() string            { return filepath.Join(f.path, "data") }
func (f folder) file(name string) string { return filepath.Join(f.path, name) }

// openFolder creates the folder if need be, checks that the server will be able
// to work there, and locks it until close. It refuses, and leaves untouched, a
// folder with files that is no cluster's.
func openFolder(path string, owner account) (folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return folder{}, fmt.Errorf("cannot determine the path of the data directory: %w", err)
	}
	if err := checkOurs(path); err != nil {
		return folder{}, err
	}
	mode := fs.FileMode(0o700)
	if owner.switched {
		mode = 0o711 // the server's user has to get through to data/
	}
	if err := owner.reaches(path); err != nil {
		return folder{}, err
	}
	if err := os.MkdirAll(path, mode); err != nil {
		return folder{}, fmt.Errorf("cannot create the data directory: %w", err)
	}
	if err := owner.reaches(path); err != nil { // a strict umask
		return folder{}, err
	}
	f := folder{path: path}
	if f.lock, err = lockFile(f.file("lock")); err != nil {
		return folder{}, err
	}
	return f, nil
}

// checkOurs refuses what is there already unless it is a cluster's folder, or an
// empty one. A start that was interrupted early may leave only the lock file.
func checkOurs(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s is not a directory: choose a new or empty directory with --data-dir", path)
	case err != nil:
		return fmt.Errorf("cannot read the data directory: %w", err)
	}
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	if len(names) == 0 || names["lock"] && (names["password"] || len(names) == 1) {
		return nil
	}
	return fmt.Errorf("%s contains files that caretaker has not created, such as %s (nothing was changed): "+
		"choose a new or empty directory with --data-dir", path, entries[0].Name())
}

// tempFolder makes a locked throw-away folder in the first of the places that
// the server's user can reach.
func tempFolder(bases []string, owner account) (folder, error) {
	var errs []error
	for _, base := range bases {
		if err := owner.reaches(base); err != nil {
			errs = append(errs, err)
			continue
		}
		path, err := os.MkdirTemp(base, ephemeralPattern)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := owner.own(path); err != nil { // the supervisor runs as this user and removes the folder if we die
			return folder{}, err
		}
		return openFolder(path, owner)
	}
	return folder{}, fmt.Errorf("cannot create a temporary database: %w", errors.Join(errs...))
}

// close ends the lock at once: a program that is being started has the file, too, until it runs.
func (f folder) close() error {
	return errors.Join(syscall.Flock(int(f.lock.Fd()), syscall.LOCK_UN), f.lock.Close())
}

// lockFile takes an exclusive lock that ends with this process.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &inUseError{filepath.Dir(path), strings.TrimSpace(string(holder))}
		}
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write %s: %w", path, err), file.Close())
	}
	return file, nil
}

// inUseError is the error of a folder that another process has locked.
type inUseError struct{ dir, process string }

func (e *inUseError) Error() string {
	return fmt.Sprintf("%s is in use by process %s: stop that process, or choose another directory with --data-dir", e.dir, e.process)
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// password returns the superuser's password, drawing it the first time.
func (f folder) password(owner account) (string, error) {
	path := f.file("password")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text())
		err = errors.Join(os.WriteFile(path, text, 0o600), owner.own(path)) // initdb reads it
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the password in the data directory: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// sweep removes throw-away folders whose process is gone, and stops their server if it still runs.
// A folder younger than a minute is skipped: its owner cannot have locked it yet. A folder that
// cannot be removed is left.
func sweep(ctx context.Context, bases []string, now time.Time) {
	for _, base := range bases {
		found, _ := filepath.Glob(filepath.Join(base, ephemeralPattern)) // constant pattern
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil || now.Sub(info.ModTime()) < time.Minute {
				continue
			}
			lock, err := lockFile(filepath.Join(path, "lock"))
			if err != nil {
				continue
			}
			removeStale(ctx, folder{path: path, lock: lock})
		}
	}
}

func removeStale(ctx context.Context, f folder) {
	if running, ok := f.readPostmaster(); ok && alive(running.pid) {
		password, err := os.ReadFile(f.file("password"))
		c := &Cluster{folder: f, password: string(password), port: running.port}
		if err != nil || proves(ctx, f, c.URL("postgres")) != nil || halt(ctx, f, running.pid) != nil {
			_ = f.close()
			return
		}
	}
	_ = os.RemoveAll(f.path)
	_ = f.close()
}
