package loosefk_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// addDown adds a database that does not answer.
func addDown(e *servicetest.Estate) {
	e.T.Helper()
	d := assert.Must(repo.Open(context.Background(), "down", "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2"))(e.T)
	e.T.Cleanup(d.Close)
	e.Open = append(e.Open, d)
}

func TestInstall_ReportsEachDatabase(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	own := servicetest.New(t, servicetest.Small, "sec")
	main := e.Open[0]
	e.Open = append(e.Open, own.Open...)
	keys := e.Keys("")
	keys.Only = "ci"
	if done, err := keys.Install(ctx); err != nil || !reflect.DeepEqual(done, []loosefk.Installed{{Database: "ci", Result: "installed"}}) {
		t.Errorf("got %v, %v", done, err)
	}
	keys.Only = ""
	want := []loosefk.Installed{{Database: "main", Result: "installed"}, {Database: "ci", Result: "managed by caretaker"}, {Database: "sec", Result: "managed by GitLab, nothing changed"}}
	if done, err := keys.Install(ctx); err != nil || !reflect.DeepEqual(done, want) {
		t.Errorf("got %v, %v", done, err)
	}
	// One that is down does not stop the others.
	e.Exec("main", `DROP TABLE loose_foreign_keys_deleted_records`)
	e.Open = e.Open[1:]
	addDown(e)
	e.Open = append(e.Open, main)
	if done, err := e.Keys("").Install(ctx); !errors.Is(err, repo.ErrUnreachable) || len(done) != 3 || done[2] != want[0] {
		t.Errorf("got %v, %v", done, err)
	}
}

func TestTrack_AsksForTheDatabaseOnlyIfThereIsAChoice(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	e.Install()
	e.Exec("main", "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE here (id int PRIMARY KEY)")
	e.Exec("ci", "CREATE TABLE p (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS id")
	keys := e.Keys("")
	_, err := keys.Track(ctx, "p", "")
	servicetest.WantError(t, err, "p is in main, ci: say with --database in which to track it")
	_, err = keys.Track(ctx, "nowhere", "")
	servicetest.WantError(t, err, "there is no table nowhere in main, ci")
	_, err = keys.Track(ctx, "seen", "")
	servicetest.WantError(t, err, "ci: public.seen is a view")
	e.Exec("main", `CREATE TABLE "Customers" (id int); CREATE SCHEMA sales; CREATE TABLE sales.customers (id int)`)
	e.Exec("ci", `CREATE SCHEMA sales; CREATE TABLE sales.customers (id int)`)
	_, err = keys.Track(ctx, "customers", "")
	servicetest.WantError(t, err, "there is no table customers in main, ci: there is Customers, sales.customers; case and schema count")
	if tracked, err := keys.Track(ctx, "here", ""); err != nil || tracked.Database != "main" || tracked.Table != "public.here" {
		t.Errorf("got %+v, %v", tracked, err)
	}
	keys.Only = "ci"
	if tracked, err := keys.Track(ctx, "p", ""); err != nil || tracked.Database != "ci" {
		t.Errorf("got %+v, %v", tracked, err)
	}
	_, err = keys.Track(ctx, "here", "")
	servicetest.WantError(t, err, "there is no table here in ci")
	e.Want("main", "SELECT count(*) FROM pg_trigger WHERE tgname = 'p_loose_fk_trigger'", "0")

	// With one of the databases down nobody knows whether there is a choice.
	addDown(e)
	if _, err := e.Keys("").Track(ctx, "here", ""); !errors.Is(err, repo.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestUntrack_NamesDefinitionsThatAreNoLongerFed(t *testing.T) {
	ctx := context.Background()
	const definitions = `
c:
  - {table: p, column: p_id, on_delete: async_delete}
  - {table: q, column: q_id, on_delete: async_delete}
d: [{table: p, column: p_id, on_delete: async_nullify}]
`
	e := servicetest.New(t, "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1);
		CREATE TABLE c (p_id int, q_id int); CREATE TABLE d (p_id int); CREATE INDEX ON c (p_id); INSERT INTO p VALUES (1, 1), (2, 1); INSERT INTO c VALUES (1, 1), (2, 1)`)
	e.Install("p")
	e.Exec("main", "DELETE FROM p WHERE id = 1")
	keys := e.Keys(definitions)
	done, err := keys.Untrack(ctx, "p_1")
	assert.That(t, err == nil && len(done) == 1 && done[0].Table == "public.p_1" && len(done[0].Unfed) == 0, "got %+v, %v", done, err)
	done, err = keys.Untrack(ctx, "p")
	if err != nil || len(done) != 1 || done[0].Database != "main" || !reflect.DeepEqual(done[0].Unfed, []string{"c.p_id -> p", "d.p_id -> p"}) {
		t.Errorf("got %+v, %v", done, err)
	}
	_, err = keys.Untrack(ctx, "p")
	servicetest.WantError(t, err, "main: public.p is not tracked", "ci: there is no table p")

	// What was pending is still cleaned.
	e.Exec("main", "DELETE FROM p WHERE id = 2")
	wantRun(t, e.Service(definitions), "processed_records=1 deleted_rows=1")
	e.Want("main", "SELECT string_agg(p_id::text, ',') FROM c", "2")
}

func TestDeadAndRetry_WorkOnAllDatabases(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	e.Install()
	const bury = `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT 'public.' || t, 7, 'c.p_id -> p', 'P0001', 'no', 10, now() FROM unnest($1::text[]) t`
	e.Exec("main", bury, []string{"p", "q", "p"})
	e.Exec("ci", bury, []string{"p"})
	keys := e.Keys("")
	list := func(table string) (got string) {
		err := keys.Dead(ctx, table, func(r loosefk.DeadRecord) error {
			got += strings.Join([]string{r.Database, r.Table}, ":") + " "
			return nil
		})
		assert.That(t, err == nil, "%v", err)
		return got
	}
	if got := list(""); got != "main:public.p main:public.q main:public.p ci:public.p " {
		t.Errorf("got %q", got)
	}
	if got := list("q"); got != "main:public.q " {
		t.Errorf("got %q", got)
	}
	one, three, nine := int64(1), int64(3), int64(9)
	for _, c := range []struct {
		id    *int64
		table string
		want  []loosefk.Retried
		err   string
	}{
		{&one, "", nil, "there is a dead record 1 in main, ci: say with --database"},
		{&nine, "", nil, "there is no dead record 9"},
		{nil, "r", nil, "there is no table r in main, ci"},
		{&three, "", []loosefk.Retried{{Database: "main", Records: 1}}, ""},
		{nil, "p", []loosefk.Retried{{Database: "main", Records: 1}, {Database: "ci", Records: 1}}, ""},
		{nil, "", []loosefk.Retried{{Database: "main", Records: 1}}, ""},
		{nil, "", nil, "no dead record matches"},
	} {
		done, err := keys.Retry(ctx, c.id, c.table)
		assert.That(t, (err != nil) == (c.err != "") && (len(done)+len(c.want) == 0 || reflect.DeepEqual(done, c.want)),
			"%v %q: got %+v, %v, want %+v", c.id, c.table, done, err, c.want)
		if c.err != "" {
			servicetest.WantError(t, err, c.err)
		}
	}
	e.Want("main", "SELECT string_agg(fully_qualified_table_name, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records", "public.p public.p public.q")
}
