package servicetest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	settings "github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// Estate is a set of databases of a test, with a plain connection to each beside the service's own.
type Estate struct {
	T    *testing.T
	URLs map[string]string
	// through are the URLs that services have, where a pooler is in between.
	Through map[string]string
	Open    []*repo.Database
	SQL     map[string]*pgx.Conn
	// routed reports whether SQL names the routed queue.
	routed bool
}

// New makes the named databases (of main, ci, sec) with the reference schema's queue and triggers, and nothing
// else: tests make their own tables.
func New(t *testing.T, schema string, names ...string) *Estate {
	t.Helper()
	e := &Estate{T: t, URLs: map[string]string{}, Through: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	for _, name := range names {
		e.Add(name, Databases.Clone(t, Migrated(schema)))
	}
	return e
}

// Add opens a database of the estate.
func (e *Estate) Add(name, url string) {
	e.T.Helper()
	e.AddThrough(name, url, url)
}

// AddThrough opens a database to which services have another URL than the test.
func (e *Estate) AddThrough(name, url, through string) {
	e.T.Helper()
	d := assert.Must(repo.Open(context.Background(), name, through))(e.T)
	e.T.Cleanup(d.Close)
	e.Open = append(e.Open, d)
	e.URLs[name] = url
	if through != url {
		e.Through[name] = through
	}
	e.SQL[name] = e.Connect(name)
	e.route(name)
}

// Connect opens a plain connection to a database.
func (e *Estate) Connect(name string) *pgx.Conn {
	e.T.Helper()
	return Connect(e.T, e.URLs[name])
}

// Open opens a database by its URL until the end of the test.
func Open(tb testing.TB, url string) *repo.Database {
	tb.Helper()
	d := assert.Must(repo.Open(context.Background(), "main", url))(tb)
	tb.Cleanup(d.Close)
	return d
}

// Connect opens a plain connection until the end of the test.
func Connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn := assert.Must(pgx.Connect(context.Background(), url))(tb)
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Role makes a role of main alone, with a password of "x" and what some SQL grants: {role} is its name.
func (e *Estate) Role(grants string) (name string) {
	e.T.Helper()
	name = "tester_" + e.Value("main", "SELECT oid FROM pg_database WHERE datname = current_database()")
	e.Exec("main", strings.ReplaceAll("CREATE ROLE {role} LOGIN PASSWORD 'x'; "+grants, "{role}", name))
	e.T.Cleanup(func() { e.Exec("main", "RESET ROLE; DROP OWNED BY "+name+"; DROP ROLE "+name) })
	return name
}

// URLAs is the URL of main for a role and its password.
func (e *Estate) URLAs(role, password string) string {
	e.T.Helper()
	u := assert.Must(url.Parse(e.URLs["main"]))(e.T)
	u.User = url.UserPassword(role, password)
	return u.String()
}

// Exec runs SQL on a database.
func (e *Estate) Exec(database, sql string, args ...any) {
	e.T.Helper()
	sql = e.sql(sql)
	if _, err := e.SQL[database].Exec(context.Background(), sql, args...); err != nil {
		e.T.Fatalf("%s: %v", sql, err)
	}
}

// Value reads one value as text. NULL is "NULL".
func (e *Estate) Value(database, sql string, args ...any) string {
	e.T.Helper()
	var v *string
	sql = e.sql(sql)
	if err := e.SQL[database].QueryRow(context.Background(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		e.T.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return "NULL"
	}
	return *v
}

// Want fails the test unless a query's value is as expected.
func (e *Estate) Want(database, sql, want string) {
	e.T.Helper()
	if got := e.Value(database, sql); got != want {
		e.T.Errorf("%s on %s: %s, want %s", sql, database, got, want)
	}
}

// Eventually waits until a query's value is as expected.
func (e *Estate) Eventually(database, sql, want string) {
	e.T.Helper()
	got := want
	defer func() {
		if got != want {
			e.T.Logf("last value: %q", got)
		}
	}()
	devdb.Eventually(e.T, fmt.Sprintf("%s on %s to be %q", sql, database, want), func() bool {
		got = e.Value(database, sql)
		return got == want
	})
}

// Service with these definitions (YAML, "" for none).
func (e *Estate) Service(definitions string, change ...func(*service.Config)) *service.Service {
	e.T.Helper()
	config := service.Config{Databases: e.Open, Logger: slog.New(slog.DiscardHandler)}
	if verbose() {
		config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if definitions != "" {
		service.Settings[lfk.Config](&config).Definitions = Definitions(e.T, definitions)
	}
	for _, c := range change {
		c(&config)
	}
	settings.Defaults(&config)
	s, err := service.New(config)
	if err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			e.T.Error(err)
		}
	})
	return s
}

// verbose reports whether the tests run with -v, but without -json.
func verbose() bool {
	v := flag.Lookup("test.v")
	return v != nil && v.Value.String() == "true"
}

// As opens main once more, as a role that is no superuser.
func (e *Estate) As(role string) *repo.Database {
	e.T.Helper()
	e.Exec("main", `DO $$ BEGIN CREATE ROLE `+role+` LOGIN PASSWORD 'x'; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$;
		GRANT ALL ON SCHEMA maintenance, public TO `+role+`; GRANT ALL ON ALL TABLES IN SCHEMA maintenance, public TO `+role)
	return Open(e.T, e.URLAs(role, "x"))
}

// Definitions are those of a YAML text.
func Definitions(t *testing.T, definitions string) *lfk.Definitions {
	t.Helper()
	d, err := lfk.LoadDefinitions(Save(t, definitions))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Save writes definitions into a file and returns its path.
func Save(t *testing.T, definitions string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "definitions.yml")
	if err := os.WriteFile(path, []byte(definitions), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// With changes the settings of one worker.
func With[C any](change func(*C)) func(*service.Config) {
	return func(c *service.Config) { change(service.Settings[C](c)) }
}

// Parallel lets a test run beside others, and returns it: New(Parallel(t), …).
func Parallel(t *testing.T) *testing.T {
	t.Helper()
	return assert.Parallel(t)
}
