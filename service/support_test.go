package service_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	settings "github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

var databases devdb.Tests

// replicated is a cluster for tests with a standby, which streams what all of them write.
var replicated = devdb.Tests{Settings: map[string]string{"synchronous_commit": "on"}}

// TestMain looks for goroutines left behind once all tests have ended: those that run in parallel see each other's.
func TestMain(m *testing.M) {
	obey()
	flag.Parse()
	// Tests wait for the database most of the time.
	_ = flag.Set("test.parallel", "6")
	goleak.VerifyTestMain(onDatabases{m})
}

type onDatabases struct{ tests *testing.M }

func (d onDatabases) Run() int { return databases.Run(onReplicated(d)) }

type onReplicated struct{ tests *testing.M }

func (r onReplicated) Run() int { return replicated.Run(onLoaded(r)) }

// migrated is an empty database, or one with a part of the reference schema, with the schema maintenance. The schema
// maintenance of main goes into all, so that one database can play any part.
func migrated(schema string) devdb.Template {
	return devdb.Template{Name: "service_" + schema, Schema: schema, Prepare: func(ctx context.Context, url string) error {
		d, err := repo.Open(ctx, "main", url)
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = scheduler.Migrate(ctx, d)
		return err
	}}
}

// estate is a set of databases of a test, with a plain connection to each beside the service's own.
type estate struct {
	t    *testing.T
	urls map[string]string
	// through are the URLs that services have, where a pooler is in between.
	through map[string]string
	open    []*repo.Database
	sql     map[string]*pgx.Conn
}

// newEstate makes the named databases (of main, ci, sec) with the reference schema's queue and triggers, and nothing
// else: tests make their own tables.
func newEstate(t *testing.T, schema string, names ...string) *estate {
	t.Helper()
	e := &estate{t: t, urls: map[string]string{}, through: map[string]string{}, sql: map[string]*pgx.Conn{}}
	for _, name := range names {
		e.add(name, databases.Clone(t, migrated(schema)))
	}
	return e
}

// add opens a database of the estate.
func (e *estate) add(name, url string) {
	e.t.Helper()
	e.addThrough(name, url, url)
}

// addThrough opens a database to which services have another URL than the test.
func (e *estate) addThrough(name, url, through string) {
	e.t.Helper()
	d, err := repo.Open(context.Background(), name, through)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(d.Close)
	e.open = append(e.open, d)
	e.urls[name] = url
	if through != url {
		e.through[name] = through
	}
	e.sql[name] = e.connect(name)
}

// connect opens a plain connection to a database.
func (e *estate) connect(name string) *pgx.Conn {
	e.t.Helper()
	conn, err := pgx.Connect(context.Background(), e.urls[name])
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// exec runs SQL on a database.
func (e *estate) exec(database, sql string, args ...any) {
	e.t.Helper()
	if _, err := e.sql[database].Exec(context.Background(), sql, args...); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value as text; NULL is "NULL".
func (e *estate) value(database, sql string, args ...any) string {
	e.t.Helper()
	var v *string
	if err := e.sql[database].QueryRow(context.Background(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return "NULL"
	}
	return *v
}

// want fails the test unless a query's value is as expected.
func (e *estate) want(database, sql, want string) {
	e.t.Helper()
	if got := e.value(database, sql); got != want {
		e.t.Errorf("%s on %s: %s, want %s", sql, database, got, want)
	}
}

// service with these definitions (YAML; "" for none).
func (e *estate) service(definitions string, change ...func(*service.Config)) *service.Service {
	e.t.Helper()
	config := service.Config{Databases: e.open, Logger: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if definitions != "" {
		service.Settings[loosefk.Config](&config).Definitions = load(e.t, definitions)
	}
	for _, c := range change {
		c(&config)
	}
	settings.Defaults(&config)
	s, err := service.New(config)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			e.t.Error(err)
		}
	})
	return s
}

// with changes the settings of one worker.
func with[C any](change func(*C)) func(*service.Config) {
	return func(c *service.Config) { change(service.Settings[C](c)) }
}

func load(t *testing.T, definitions string) *loosefk.Definitions {
	t.Helper()
	d, err := loosefk.LoadDefinitions(save(t, definitions))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// save writes definitions into a file and returns its path.
func save(t *testing.T, definitions string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "definitions.yml")
	if err := os.WriteFile(path, []byte(definitions), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// deleted records the keys first to last as deleted rows of a parent in the application schema.
func (e *estate) deleted(database, parent string, first, last int) {
	e.t.Helper()
	e.exec(database, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.' || $1, i FROM generate_series($2::bigint, $3) i`, parent, first, last)
}

const cleanupWorker = "loose_foreign_keys_cleanup"

// runBatch runs the worker on a database and fails the test on an error.
func runBatch(t *testing.T, s *service.Service, database string) service.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: database})
	if err != nil {
		t.Fatal(err)
	}
	wantSums(t, r)
	return r
}

// wantCounts fails the test unless the run's counts are these, "key=n key=n"; keys not named must be 0.
func wantCounts(t *testing.T, r service.Run, want string) {
	t.Helper()
	expected := map[string]string{}
	for pair := range strings.FieldsSeq(want) {
		key, n, _ := strings.Cut(pair, "=")
		expected[key] = n
	}
	for key, n := range r.Counts {
		w, named := expected[key]
		if !named {
			w = "0"
		}
		if fmt.Sprint(n) != w {
			t.Errorf("%s = %d, want %s", key, n, w)
		}
		delete(expected, key)
	}
	for key := range expected {
		t.Errorf("count %s is missing", key)
	}
}

// wantSums fails the test unless the run's tables add up to its counts.
func wantSums(t *testing.T, r service.Run) {
	t.Helper()
	var deleted, updated int64
	for _, table := range r.Tables {
		deleted, updated = deleted+table.Deleted, updated+table.Updated
	}
	if want := r.Counts["deleted_rows"]; deleted != want {
		t.Errorf("%d rows deleted in tables, deleted_rows is %d: %v", deleted, want, r.Tables)
	}
	if want := r.Counts["moved_rows"] + r.Counts["nullified_rows"] + r.Counts["updated_rows"]; updated != want {
		t.Errorf("%d rows updated in tables, the counts say %d: %v", updated, want, r.Tables)
	}
}

// wantState fails the test unless the run ended so.
func wantState(t *testing.T, r service.Run, state string) {
	t.Helper()
	if r.State != state {
		t.Fatalf("run is %s (reason %q, error %q), want %s", r.State, r.Reason, r.Error, state)
	}
}
