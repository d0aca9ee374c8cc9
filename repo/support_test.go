package repo_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

var databases = &servicetest.Databases

// replicated is a cluster for tests with a standby, which streams what all of them write.
var replicated = devdb.Tests{Settings: map[string]string{"synchronous_commit": "on"}}

func TestMain(m *testing.M) {
	// State machines are short, unless -rapid.checks reports otherwise.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	os.Exit(databases.Run(onReplicated{m}))
}

type onReplicated struct{ tests *testing.M }

func (r onReplicated) Run() int { return replicated.Run(r.tests) }

// loaded is such a database with what some SQL has put there.
func loaded(name, schema, sql string) devdb.Template {
	return devdb.Template{Name: name, Schema: schema, Version: sql, Dated: true, Prepare: func(ctx context.Context, url string) error {
		if err := servicetest.Migrated(schema).Prepare(ctx, url); err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		return second(conn.Exec(ctx, sql))
	}}
}

// bench is a database of a test, with a plain connection beside the one under test.
type bench struct {
	*testing.T
	*repo.Database
	estate *servicetest.Estate
	url    string
	sql    *pgx.Conn
}

// newBench makes a database with a part of the reference schema.
func newBench(t *testing.T, schema string) *bench {
	t.Helper()
	e := servicetest.New(t, schema, "main")
	return &bench{T: t, Database: e.Open[0], estate: e, url: e.URLs["main"], sql: e.SQL["main"]}
}

// installed makes an empty database with a queue of our own.
func installed(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, "")
	b.exec("CREATE SCHEMA gitlab_partitions_dynamic")
	assert.Must(admin.New(b.Database.Database).InstallQueue(t.Context()))(t)
	return b
}

// with is the database's URL with other settings of the connection.
func (b *bench) with(settings string) string {
	return b.url + "&" + settings
}

// track tracks a table by its id.
func (b *bench) track(table string) {
	b.Helper()
	if _, err := admin.New(b.Database.Database).Track(b.Context(), table, ""); err != nil {
		b.Fatalf("track %s: %v", table, err)
	}
}

// exec runs SQL. several statements may be separated by semicolons.
func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	b.estate.Exec("main", sql, args...)
}

// value reads one value as text. NULL is "NULL".
func (b *bench) value(sql string) string {
	b.Helper()
	return b.estate.Value("main", sql)
}

// want fails the test unless a query's value is as expected.
func (b *bench) want(sql, want string) {
	b.Helper()
	b.estate.Want("main", sql, want)
}
