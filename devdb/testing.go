package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// prepareTimeout bounds the preparation of a template. Big ones take minutes on
// a busy machine.
const prepareTimeout = 10 * time.Minute

// tb is what Clone needs of *testing.T, *testing.B and the like. The testing
// package itself stays out of the binary.
type tb interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// WaitTimeout is how long a test waits for what must come: so long only if that
// never comes.
const WaitTimeout = 2 * time.Minute

// Eventually waits until a condition holds and asks every few milliseconds. The
// test fails after WaitTimeout.
func Eventually(t tb, what string, holds func() bool) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(WaitTimeout); !holds(); <-again.C {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", WaitTimeout, what)
		}
	}
}

// Template describes databases that tests get copies of.
type Template struct {
	// Name identifies the template within the process, at most 40 bytes.
	Name string
	// Schema is loaded first: a name for LoadSchema, or empty for none.
	Schema string
	// Prepare, if set, does the rest, such as migrating. It runs once for the
	// process and has to close its connections.
	Prepare func(ctx context.Context, url string) error
}

// NarrowKeys is SQL that makes the bigint columns of these names, a pattern of
// LIKE, integer in all tables of the application, as in schemas from before ids
// were widened; but not the keys of partitions, which cannot be altered.
func NarrowKeys(columns string) string {
	return strings.Replace(narrowKeys, "{columns}", columns, 1)
}

const narrowKeys = `
DO $$
DECLARE narrow text;
BEGIN
  FOR narrow IN
    SELECT format('ALTER TABLE %s %s', a.attrelid::regclass, string_agg(format('ALTER %I TYPE integer', a.attname), ', '))
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0
      AND a.attname LIKE '{columns}' AND a.atttypid = 'bigint'::regtype
      AND (p.partattrs IS NULL OR a.attnum <> ALL (p.partattrs))
    GROUP BY a.attrelid
  LOOP
    EXECUTE narrow;
  END LOOP;
END $$;
`

// Tests gives the tests of one process databases of their own, on one ephemeral
// cluster that starts with the first. The zero value is ready; a test package
// has one and hands it the package's run:
//
//	var databases devdb.Tests
//
//	func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }
type Tests struct {
	// Settings of the cluster win over our own.
	Settings map[string]string

	mu        sync.Mutex
	cluster   *Cluster
	failed    error
	templates map[string]error
	clones    int
}

// Run runs the tests and then stops the cluster. Its result is for os.Exit. A
// test process that is killed or interrupted leaves nothing behind either.
func (s *Tests) Run(m interface{ Run() int }) int {
	code := m.Run()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return code
	}
	if err := s.cluster.Stop(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "stop the test databases:", err)
		return max(code, 1)
	}
	return code
}

// Cluster returns the tests' cluster, for what needs more than a Clone. It
// belongs to all tests of the process: what a test changes it puts back.
func (s *Tests) Cluster(t tb) *Cluster {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.started()
	if err != nil {
		t.Fatalf("start the test databases: %v", err)
	}
	return cluster
}

// started starts the cluster once; the caller holds mu.
func (s *Tests) started() (*Cluster, error) {
	if s.cluster == nil && s.failed == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*startTimeout)
		defer cancel()
		s.cluster, s.failed = Start(ctx, Config{Ephemeral: true, Dir: memoryDir(), Settings: s.Settings})
	}
	return s.cluster, s.failed
}

// memoryDir returns a folder in memory if the machine has one with at least
// 4 GiB free, else "". A clone has a thousand files: on a disk that is busy
// making one takes a second, in memory 20 ms.
func memoryDir() string {
	const shared, needed = "/dev/shm", 4 << 30
	var stat syscall.Statfs_t
	if err := syscall.Statfs(shared, &stat); err != nil || stat.Bavail*uint64(stat.Bsize) < needed {
		return ""
	}
	return shared
}

// Clone returns the URL of a new copy of the template, which is dropped, with
// whatever is connected to it, when the test ends.
func (s *Tests) Clone(t tb, from Template) string {
	t.Helper()
	cluster := s.Cluster(t)
	number, err := s.prepared(cluster, from)
	if err != nil {
		t.Fatalf("prepare the template %s: %v", from.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	name := fmt.Sprintf("clone_%d_%s", number, from.Name)
	if err := cluster.clone(ctx, name, from.database()); err != nil {
		t.Fatalf("clone the template %s: %v", from.Name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		drop := "DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"
		if err := cluster.exec(ctx, drop); err != nil {
			t.Fatalf("drop the clone %s: %v", name, err)
		}
	})
	return cluster.URL(name)
}

func (t Template) database() string { return "template_" + t.Name }

// prepared makes the template's database, once, and counts the clones.
func (s *Tests) prepared(cluster *Cluster, from Template) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clones++
	err, known := s.templates[from.Name]
	if !known {
		if s.templates == nil {
			s.templates = map[string]error{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), prepareTimeout)
		defer cancel()
		err = cluster.prepare(ctx, from)
		s.templates[from.Name] = err
	}
	return s.clones, err
}

func (c *Cluster) prepare(ctx context.Context, from Template) error {
	if from.Name == "" || len(from.Name) > 40 || strings.ContainsRune(from.Name, 0) {
		return errors.New("a template's name has 1 to 40 bytes")
	}
	if err := c.CreateDatabase(ctx, from.database()); err != nil {
		return err
	}
	url := c.URL(from.database())
	if from.Schema != "" {
		if err := LoadSchema(ctx, url, from.Schema); err != nil {
			return err
		}
	}
	if from.Prepare != nil {
		if err := from.Prepare(ctx, url); err != nil {
			return err
		}
	}
	return c.exec(ctx, "ALTER DATABASE "+pgx.Identifier{from.database()}.Sanitize()+" ALLOW_CONNECTIONS false")
}

// clone copies a database. The server waits up to 5 s for connections to the
// template to end, and fails if they do not.
func (c *Cluster) clone(ctx context.Context, name, template string) error {
	return c.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+pgx.Identifier{template}.Sanitize())
}
