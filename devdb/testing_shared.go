package devdb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// SharedCluster is the environment variable with the folder of a running cluster
// on which the test packages of one "go test ./..." have their databases.
const SharedCluster = "CARETAKER_TEST_CLUSTER"

// sharedMemory is where Linux has a file system in memory.
const sharedMemory = "/dev/shm"

// maxTemplates is how many templates are kept, the newest. Each change of the schema or of a
// migration leaves old ones.
const maxTemplates = 30

// StartShared starts the cluster for SharedCluster. Its folder is kept for the
// next call, with its templates: in memory if there is room. If it is in use or
// does not start, StartShared starts an ephemeral cluster. The log gets one line
// for each step that takes time.
func StartShared(ctx context.Context, log io.Writer) (*Cluster, error) {
	version := 0 // that of a PostgreSQL that is still to be downloaded
	if found, err := find(ctx, os.Getenv("PATH"), places(), 0); err == nil {
		version = found.version
	}
	dir := keptDir(strconv.Itoa(version))
	c, err := startKept(ctx, dir, log)
	if err == nil || ctx.Err() != nil || errors.Is(err, errNoPrograms) {
		return c, err
	}
	if other, ok := errors.AsType[*inUseError](err); ok {
		_, _ = fmt.Fprintf(log, "The test cluster is in use by process %s: starting a temporary one\n", other.process)
	} else {
		_, _ = fmt.Fprintf(log, "The test cluster does not start (%v): starting a temporary one\n", err)
		err = removeKept(ctx, dir) // it may be damaged: it is written without fsync
	}
	if _, used := errors.AsType[*inUseError](err); err != nil && !used {
		return nil, err
	}
	return startForTests(ctx, Config{Ephemeral: true, Dir: memoryDir(), Log: log})
}

func startKept(ctx context.Context, dir string, log io.Writer) (*Cluster, error) {
	c, err := startForTests(ctx, Config{Dir: dir, unsafe: true, Log: log})
	if err != nil {
		return nil, err
	}
	if err := c.tidy(ctx); err != nil {
		return nil, errors.Join(err, c.Stop(ctx))
	}
	return c, nil
}

// keptDir is the folder of the kept cluster of a major version.
func keptDir(version string) string {
	name := fmt.Sprintf("caretaker-tests-%d-%s", os.Getuid(), version)
	if there := filepath.Join(sharedMemory, name); !missing(there) {
		return there // also when it has taken the room that memoryDir asks for
	}
	return filepath.Join(cmp.Or(memoryDir(), os.TempDir()), name)
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// RemoveShared removes the kept clusters of all versions. It fails while a
// process uses one.
func RemoveShared(ctx context.Context) (err error) {
	for _, base := range []string{sharedMemory, os.TempDir()} {
		// The pattern is well-formed.
		dirs, _ := filepath.Glob(filepath.Join(base, fmt.Sprintf("caretaker-tests-%d-*", os.Getuid())))
		for _, dir := range dirs {
			err = errors.Join(err, removeKept(ctx, dir))
		}
	}
	return err
}

// removeKept removes one kept cluster. It fails while a process uses the cluster.
func removeKept(ctx context.Context, dir string) error {
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	removeStale(ctx, folder{path: dir, lock: lock})
	if !missing(dir) {
		return fmt.Errorf("cannot remove %[1]s: remove %[1]s manually", dir)
	}
	return nil
}

const leftBehindSQL = `
SELECT format('DROP DATABASE %I WITH (FORCE)', datname)
FROM pg_database
WHERE NOT datistemplate AND datname <> 'postgres'
  AND (datname NOT LIKE 'template\_%' OR datname LIKE '%\_new'
    OR datname IN (
      SELECT datname FROM pg_database WHERE datname LIKE 'template\_%' ORDER BY oid DESC OFFSET $1))
UNION ALL
SELECT format('DROP ROLE %I', rolname)
FROM pg_roles
WHERE rolname NOT LIKE 'pg\_%' AND rolname <> current_user`

// tidy drops the leftovers of killed tests: all databases but complete templates, and all roles.
func (c *Cluster) tidy(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, _ := conn.Query(ctx, leftBehindSQL, maxTemplates) // CollectRows returns the error
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return c.exec(ctx, statements...)
}

// attach returns the running cluster of a folder. Its Stop does nothing.
func attach(ctx context.Context, dir string) (*Cluster, error) {
	c := &Cluster{folder: folder{path: dir}, attached: true, idle: make(chan *pgx.Conn, maxIdle)}
	password, err := os.ReadFile(c.folder.file("password"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the cluster in %s: %w", SharedCluster, err)
	}
	running, ok := c.folder.readPostmaster()
	if !ok {
		return nil, fmt.Errorf("the cluster in %s is not running: unset the variable, or run `make test`", SharedCluster)
	}
	c.password, c.port = string(password), running.port
	if c.owner, err = serverAccount(); err != nil {
		return nil, err
	}
	if err := proves(ctx, c.folder, c.URL("postgres")); err != nil {
		return nil, fmt.Errorf("cannot connect to the cluster in %s: %w", SharedCluster, err)
	}
	return c, nil
}

// memoryDir returns a folder in memory if the machine has one with at least
// 4 GiB free, else "". A clone has a thousand files: on a disk that is busy
// making one takes a second, in memory 20 ms.
func memoryDir() string {
	const needed = 4 << 30
	var stat syscall.Statfs_t
	if err := syscall.Statfs(sharedMemory, &stat); err != nil || stat.Bavail*uint64(stat.Bsize) < needed {
		return ""
	}
	return sharedMemory
}

// SourceRoot is the folder with this module's go.mod: the working directory, or one
// above it.
func SourceRoot() (string, error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for missing(filepath.Join(root, "go.mod")) {
		if root == filepath.Dir(root) {
			return "", errors.New("go.mod not found above the working directory: run the tests inside the source tree")
		}
		root = filepath.Dir(root)
	}
	return root, nil
}

// templateSources is a hash of the files of this module that make schemas, demo
// data and migrations.
func templateSources() (string, error) {
	root, err := SourceRoot()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, pattern := range []string{
		"go.sum", "devdb/*.sql", "devdb/*.go", "repo/*.go", "repo/*/*.go", "repo/*/*/*.go", "repo/migrations/*/*", "scheduler/*.go",
	} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			return "", errors.Join(fmt.Errorf("no files match %s: update templateSources", pattern), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			_, _ = fmt.Fprintf(hash, "%s:%d:", filepath.Base(file), len(text))
			_, _ = hash.Write(text)
		}
	}
	return string(hash.Sum(nil)), nil
}
