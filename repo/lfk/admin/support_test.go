package admin_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { os.Exit(servicetest.Databases.Run(m)) }

// bench is a database of a test, with a plain connection beside the one under test.
type bench struct {
	*testing.T
	admin.Admin
	estate *servicetest.Estate
	url    string
	sql    *pgx.Conn
}

// newBench makes a database with a part of the reference schema.
func newBench(t *testing.T, schema string) *bench {
	t.Helper()
	e := servicetest.New(t, schema, "main")
	return &bench{T: t, Admin: admin.New(e.Open[0].Database), estate: e, url: e.URLs["main"], sql: e.SQL["main"]}
}

// installed makes an empty database with a queue of our own, for a test that runs beside others.
func installed(t *testing.T) *bench {
	t.Helper()
	b := newBench(servicetest.Parallel(t), "")
	b.install(admin.QueueInstalled)
	return b
}

// with is the database's URL with other settings of the connection.
func (b *bench) with(settings string) string {
	return b.url + "&" + settings
}

func (b *bench) install(want string) {
	b.Helper()
	got, err := b.InstallQueue(context.Background())
	assert.Require(b.T, err == nil && got == want, "install: %q, %v, want %q", got, err, want)
}

// track tracks a table and returns what was made.
func (b *bench) track(table, column string) admin.Tracked {
	b.Helper()
	tracked, err := b.Track(context.Background(), table, column)
	assert.Require(b.T, err == nil, "track %s: %v", table, err)
	return tracked
}

// wantRefusal fails the test unless the error is a refusal with these words in it.
func (b *bench) wantRefusal(err error, words ...string) {
	b.Helper()
	if _, refused := errors.AsType[*admin.RefusedError](err); !refused {
		b.Errorf("got %v, want a refusal with %q", err, words)
		return
	}
	servicetest.WantError(b.T, err, words...)
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

// wantRecords fails the test unless the queue has exactly these records, "table:key" in order of table and key, and
// empties it.
func (b *bench) wantRecords(want ...string) {
	b.Helper()
	b.want(`SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM (
		SELECT fully_qualified_table_name || ':' || primary_key_value AS r FROM loose_foreign_keys_deleted_records) x`, strings.Join(want, " "))
	b.exec("DELETE FROM loose_foreign_keys_deleted_records")
}

// wantTriggers fails the test unless the database has exactly these triggers that record deletions, "relation:fires".
func (b *bench) wantTriggers(want ...string) {
	b.Helper()
	b.want(`SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM (
		SELECT tgrelid::regclass || ':' || tgenabled::text AS r FROM pg_trigger WHERE tgname LIKE '%loose\_fk\_trigger') x`, strings.Join(want, " "))
}

// refuses fails the test unless tracking a table is refused with these words.
func (b *bench) refuses(table, column string, words ...string) {
	b.Helper()
	_, err := b.Track(context.Background(), table, column)
	b.wantRefusal(err, words...)
}
