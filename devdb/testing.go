package devdb

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// WaitTimeout bounds every wait of a test. Only a failing test waits that long.
const WaitTimeout = 4 * time.Minute

// Eventually waits until a condition holds and asks every few milliseconds, less
// often the longer it takes. The test fails after WaitTimeout.
func Eventually(t tb, what string, holds func() bool) {
	t.Helper()
	wait := 5 * time.Millisecond
	for end := time.Now().Add(WaitTimeout); !holds(); wait = min(wait*5/4, 25*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", WaitTimeout, what)
		}
		<-time.After(wait)
	}
}

// OnStandby returns the value of an SQL expression on a standby as text. It retries the query while
// replay cancels it because of a conflict with recovery.
func OnStandby(t tb, conn *pgx.Conn, expression string) (value string) {
	t.Helper()
	Eventually(t, expression+" on the standby", func() bool {
		err := conn.QueryRow(context.Background(), "SELECT ("+expression+")::text").Scan(&value)
		var conflict *pgconn.PgError
		if errors.As(err, &conflict) && conflict.Code == "40001" {
			return false
		}
		if err != nil {
			t.Fatalf("%s on the standby: %v", expression, err)
		}
		return true
	})
	return value
}

const contentSQL = `
SELECT 'SELECT jsonb_object_agg(name, content) FROM (' || string_agg(format('SELECT %1$L AS name,
  count(*) || coalesce(md5(string_agg(r, '' '' ORDER BY r)), '''') AS content
  FROM (SELECT t.ctid || '' '' || t.xmin || '' '' || t AS r FROM %1$s t) x', c.oid::regclass), ' UNION ALL ') || ') x'
FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace IN ('public'::regnamespace, 'maintenance'::regnamespace)
  AND c.oid::regclass::text <> ALL ($1)`

// Content returns a digest of each table of the schemas public and maintenance,
// by name, except the tables in without. Every update changes it.
func Content(t tb, conn *pgx.Conn, without ...string) (digests map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), WaitTimeout)
	defer cancel()
	var sql string
	err := conn.QueryRow(ctx, contentSQL, append([]string{}, without...)).Scan(&sql)
	if err == nil {
		err = conn.QueryRow(ctx, sql).Scan(&digests)
	}
	if err != nil {
		t.Fatalf("read the tables: %v", err)
	}
	return digests
}

// Template describes databases that tests get copies of.
type Template struct {
	// Name identifies what Prepare does, at most 30 bytes. Packages that use the
	// same name, schema and version share a template.
	Name string
	// Schema is loaded first: a name for LoadSchema, or empty for none.
	Schema string
	// Version is what Prepare depends on besides the schema, the demo data and
	// the migrations, such as the SQL that it runs. Change it with the code of
	// Prepare.
	Version string
	// Encoding of the database, such as LATIN1, with the collation C. Empty means that of the cluster.
	Encoding string
	// Dated templates hold times that age, as the demo data does. They are dropped
	// when the cluster stops.
	Dated bool
	// Prepare, if set, does further steps, such as migrating. It closes its connections.
	Prepare func(ctx context.Context, url string) error
}

// DemoTemplate is the reference schema of main, ci or sec with its demo data.
func DemoTemplate(database string) Template {
	return Template{Name: "demo_" + database, Schema: database, Dated: true, Prepare: func(ctx context.Context, url string) error {
		return load(ctx, url, demoPart(database))
	}}
}

// NarrowKeys is SQL that makes bigint columns integer in all tables of the application, as in
// schemas from before ids were widened. Their names match a pattern of LIKE. The keys of partitions
// cannot be altered, and stay.
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

// Tests gives the tests of one process databases of their own. They are on the cluster that
// SharedCluster names, or else on an ephemeral one that starts with the first test. The zero value
// is ready. A test package has one and hands it the package's run:
//
//	var databases devdb.Tests
//
//	func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }
type Tests struct {
	// Settings of the cluster win over our own. With settings the cluster is
	// never a shared one.
	Settings map[string]string

	mu        sync.Mutex
	cluster   *Cluster
	failed    error
	templates map[string]prepared
	clones    int
}

// prepared holds a template's database, or the error of its preparation.
type prepared struct {
	database string
	err      error
}

// Run runs the tests and then stops the cluster. Its result is for os.Exit. The
// clones of a killed process are dropped when a shared cluster starts or stops.
func (s *Tests) Run(m interface{ Run() int }) int {
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the test databases:", err)
		return max(code, 1)
	}
	return code
}

// Stop stops the cluster, if one was started. Run calls it.
func (s *Tests) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Stop(context.Background())
}

// Cluster returns the tests' cluster, for what needs more than a Clone. Tests of
// other processes may use it at the same time: a test changes nothing outside
// its own clones.
func (s *Tests) Cluster(t tb) *Cluster {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.started()
	if err != nil {
		t.Fatalf("cannot start the test databases: %v", err)
	}
	return cluster
}

// started starts the cluster once. The caller holds mu.
func (s *Tests) started() (*Cluster, error) {
	if s.cluster == nil && s.failed == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*startTimeout)
		defer cancel()
		if shared := os.Getenv(SharedCluster); shared != "" && s.Settings == nil {
			s.cluster, s.failed = attach(ctx, shared)
		} else {
			s.cluster, s.failed = startForTests(ctx, Config{Ephemeral: true, Dir: memoryDir(), Settings: s.Settings})
		}
	}
	return s.cluster, s.failed
}

// startForTests starts a cluster with the settings of tests, and ours.
func startForTests(ctx context.Context, config Config) (*Cluster, error) {
	config.Settings = testSettings(config.Settings)
	config.Environment = append([]string{"GLIBC_TUNABLES=" + keepMemory}, config.Environment...)
	c, err := Start(ctx, config)
	if err != nil {
		return nil, err
	}
	c.idle = make(chan *pgx.Conn, maxIdle)
	err = c.exec(ctx, `DO $$ BEGIN
  CREATE EXTENSION IF NOT EXISTS pg_stat_statements;
EXCEPTION WHEN feature_not_supported OR undefined_file THEN END $$`, quickPassword(c.password))
	if err != nil {
		return nil, errors.Join(err, c.Stop(ctx))
	}
	return c, nil
}

// Clone returns the URL of a new copy of the template, which is dropped, with
// whatever is connected to it, when the test ends.
func (s *Tests) Clone(t tb, from Template) string {
	t.Helper()
	cluster := s.Cluster(t)
	number, template, err := s.prepared(cluster, from)
	if err != nil {
		t.Fatalf("cannot prepare the template %s: %v", from.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), WaitTimeout)
	defer cancel()
	name := fmt.Sprintf("clone_%d_%d_%s", os.Getpid(), number, from.Name)
	if err := cluster.clone(ctx, name, template); err != nil {
		t.Fatalf("cannot clone the template %s: %v", from.Name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), WaitTimeout)
		defer cancel()
		drop := "DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"
		if err := cluster.exec(ctx, forget(name), drop); err != nil {
			t.Fatalf("cannot drop the clone %s: %v", name, err)
		}
	})
	return cluster.URL(name)
}

// forget removes the statistics of a database's statements, which would push out
// those of other tests. It does nothing where the library is missing.
func forget(database string) string {
	return strings.Replace(`DO $$ BEGIN
  PERFORM pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = '{database}';
EXCEPTION WHEN undefined_function OR object_not_in_prerequisite_state THEN END $$`, "{database}", database, 1)
}

// prepared makes the template's database, unless it is there, and counts the
// clones.
func (s *Tests) prepared(cluster *Cluster, from Template) (int, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clones++
	key := strings.Join([]string{from.Name, from.Schema, from.Version, from.Encoding}, "\x00")
	done, known := s.templates[key]
	if !known {
		if s.templates == nil {
			s.templates = map[string]prepared{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), prepareTimeout)
		defer cancel()
		done.database, done.err = cluster.prepare(ctx, from)
		s.templates[key] = done
	}
	return s.clones, done.database, done.err
}

// database names the template's database by a hash of all that it is made of.
// Dated ones have another prefix, so that tidy drops them.
func (t Template) database() (string, error) {
	if t.Name == "" || len(t.Name) > 30 || strings.ContainsRune(t.Name, 0) {
		return "", errors.New("the name of a template must have 1 to 30 bytes")
	}
	sources, err := templateSources()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, part := range []string{sources, t.Name, t.Schema, t.Version, t.Encoding} {
		_, _ = fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	prefix := "template"
	if t.Dated {
		prefix = "dated"
	}
	return fmt.Sprintf("%s_%s_%.6x", prefix, t.Name, hash.Sum(nil)), nil
}

// prepare creates the template's database. Only one process creates a template
// at a time. A complete one gets its final name.
func (c *Cluster) prepare(ctx context.Context, from Template) (name string, err error) {
	if name, err = from.database(); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return "", err
	}
	// The end of the session frees the lock.
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
		return "", err
	}
	var exists bool
	row := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name)
	if err := row.Scan(&exists); err != nil || exists {
		return name, err
	}
	fresh, complete := pgx.Identifier{name + "_new"}.Sanitize(), pgx.Identifier{name}.Sanitize()
	create := "CREATE DATABASE " + fresh
	if from.Encoding != "" {
		create += " TEMPLATE template0 LOCALE 'C' ENCODING '" + from.Encoding + "'"
	}
	if err := c.exec(ctx, "DROP DATABASE IF EXISTS "+fresh, create); err != nil {
		return "", err
	}
	if err := c.fill(ctx, c.URL(name+"_new"), from); err != nil {
		return "", err
	}
	if err := packCatalogue(ctx, c.URL(name+"_new")); err != nil {
		return "", err
	}
	for end := time.Now().Add(WaitTimeout); ; {
		err = c.exec(ctx, "ALTER DATABASE "+fresh+" ALLOW_CONNECTIONS false", "ALTER DATABASE "+fresh+" RENAME TO "+complete)
		// object_in_use: the backend of a closed connection has not ended yet.
		if known, ok := errors.AsType[*pgconn.PgError](err); !ok || known.Code != "55006" || pause(ctx, end) != nil {
			return name, err
		}
	}
}

const catalogueSQL = `
SELECT 'VACUUM (FULL, ANALYZE) ' || string_agg(oid::regclass::text, ', ')
FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared`

// packCatalogue compacts the system catalogue, as each clone copies its files: that
// takes 2 ms less. It analyzes it, as autovacuum does elsewhere: planning and reading it
// takes less. Then a session writes the cache file of the catalogue. Clones get it,
// too: their connections open in half the time.
func packCatalogue(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	var sql string
	if err = conn.QueryRow(ctx, catalogueSQL).Scan(&sql); err == nil {
		_, err = conn.Exec(ctx, sql)
	}
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	if conn, err = pgx.Connect(ctx, url); err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (c *Cluster) fill(ctx context.Context, url string, from Template) error {
	if from.Schema != "" {
		if err := LoadSchema(ctx, url, from.Schema); err != nil {
			return err
		}
	}
	if from.Prepare == nil {
		return nil
	}
	return from.Prepare(ctx, url)
}

// clone copies a database. The server waits up to 5 s for connections to the template to end, and
// fails if they do not. Before version 15 the only way was to copy files. It takes two thirds of
// the time of copying pages, which is the default since.
func (c *Cluster) clone(ctx context.Context, name, template string) error {
	version, err := c.folder.version()
	if err != nil {
		return err
	}
	create := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	if version >= 15 {
		create += " STRATEGY file_copy"
	}
	return c.exec(ctx, create)
}
