package repo_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// catalog reads the tables with their columns, and all foreign keys.
func (b *bench) catalog(wanted map[string][]string) *catalog.Catalog {
	b.Helper()
	return assert.Must(b.Schema.Catalog(context.Background(), wanted))(b.T)
}

func TestCatalog_KnowsTablesAndColumnsThatWereAskedFor(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "all")
	b.exec(`CREATE VIEW a_view AS SELECT id FROM users; CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.far (id bigint)`)
	c := b.catalog(map[string][]string{
		"users": {"id", "user_type", "nonsense"}, "keys": {"user_id"}, "p_ci_builds": {"user_id"}, "nowhere": {"id"}, "a_view": {"id"}, "far": {"id"},
	})
	users := c.Table("users")
	assert.That(t, users.Has("id", "user_type") && !users.Has("nonsense") && !users.Has("email"), "users is %+v", users)
	id, _ := users.Column("id")
	assert.That(t, id.NotNull && id.HasDefault && id.Type == "bigint", "users.id is %+v", id)
	kind, _ := users.Column("user_type")
	assert.That(t, !kind.NotNull && kind.Type == "smallint", "users.user_type is %+v", kind)
	assert.That(t, c.Table("p_ci_builds").Has("user_id"), "a partitioned table is no table")
	for _, name := range []string{"nowhere", "a_view", "far", "issues"} {
		assert.That(t, c.Table(name) == nil && !c.Table(name).Has(), "%s is there", name)
	}
	_, ok := rowset.RowsOf(c, "keys", "type", "x")
	assert.That(t, !ok, "a column that nobody asked for is there")

	// A table that must not be read is named.
	d := servicetest.Open(t, b.estate.URLAs(b.estate.Role(`GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON users TO {role}`), "x"))
	assert.Must(d.Schema.Tables(context.Background(), map[string][]string{"users": {"id"}}))(t)
	_, err := d.Schema.Tables(context.Background(), map[string][]string{"users": {"id"}, "issues": {"author_id"}})
	assert.That(t, errors.Is(err, dberr.ErrForbidden), "got %v, want ErrForbidden", err)
	servicetest.WantError(t, err, "issues", "SELECT")

	// Leftovers of a split are no tables.
	b.exec(`CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER protect BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON releases FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	c = b.catalog(map[string][]string{"releases": {"author_id"}, "reviews": {"author_id"}})
	assert.That(t, c.Table("releases") == nil && c.Table("reviews") != nil, "a write-protected table is a table, or another one is none")
}

func TestCatalog_KnowsForeignKeysOfEverySchemaAndTheirActions(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE p (id bigint PRIMARY KEY, a integer, b text, UNIQUE (a, b))`)
	b.exec(`CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.c1 (p_id bigint REFERENCES p ON DELETE CASCADE)`)
	b.exec(`CREATE TABLE c2 (p_id bigint REFERENCES p ON DELETE SET NULL, r bigint REFERENCES p ON DELETE RESTRICT,
		d bigint REFERENCES p ON DELETE SET DEFAULT, n bigint REFERENCES p)`)
	some, set := "(x)", []string{"x"}
	if b.value(`current_setting('server_version_num')::int < 150000`) == "true" {
		some, set = "", []string{"x", "y"} // All columns are set to NULL, or none.
	}
	b.exec(`CREATE TABLE c3 (x integer, y text, FOREIGN KEY (x, y) REFERENCES p (a, b) ON DELETE SET NULL ` + some + `)`)
	b.exec(`CREATE TABLE c4 (id bigint, p_id bigint REFERENCES p ON DELETE CASCADE) PARTITION BY LIST (id);
		CREATE TABLE c4_1 PARTITION OF c4 FOR VALUES IN (1); CREATE TABLE c4_2 PARTITION OF c4 FOR VALUES IN (2)`)
	var got []string
	for _, k := range b.catalog(nil).References(catalog.Table{Schema: "public", Name: "p"}) {
		parent := ""
		for _, c := range k.ParentColumns {
			parent += " " + c.Name + ":" + c.Type
		}
		got = append(got, k.Child.Schema+"."+k.Child.Name+" "+k.ColumnNames()+" "+k.OnDelete+parent)
		assert.That(t, k.Child.Name != "c3" || slices.Equal(rowset.Nullify(k).Set, set), "sets %s to NULL", rowset.Nullify(k).Set)
	}
	want := []string{
		"elsewhere.c1 p_id c id:bigint", "public.c2 d d id:bigint", "public.c2 n a id:bigint", "public.c2 p_id n id:bigint",
		"public.c2 r r id:bigint", "public.c3 x,y n a:integer b:text", "public.c4 p_id c id:bigint",
	}
	assert.That(t, slices.Equal(got, want), "got  %q\nwant %q", got, want)
}

func TestCatalog_CopesWithALargeSchema(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE t_0 (id bigint PRIMARY KEY)`)
	b.exec(`DO $$ BEGIN FOR i IN 1..1000 LOOP
		EXECUTE format('CREATE TABLE t_%s (id bigint PRIMARY KEY, a bigint REFERENCES t_%s, b bigint REFERENCES t_%s ON DELETE CASCADE)', i, i - 1, i / 2);
	END LOOP; END $$`)
	c := b.catalog(map[string][]string{"t_5": {"a"}})
	n := len(c.References(catalog.Table{Schema: "public", Name: "t_4"}))
	assert.That(t, n == 3 && c.Table("t_5") != nil && c.Table("t_6") == nil, "%d keys refer to t_4, want 3", n)
}

func TestKeepingTriggers_AreEnabledRowTriggersAndRulesOfTheTableAndItsPartitions(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TABLE plain (id bigint);
		CREATE TRIGGER keep BEFORE DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER touch BEFORE UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER change BEFORE UPDATE OR DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER off BEFORE DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		ALTER TABLE plain DISABLE TRIGGER off;
		CREATE TRIGGER after AFTER DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER statement BEFORE DELETE ON plain EXECUTE FUNCTION keep();
		CREATE RULE hide AS ON DELETE TO plain DO INSTEAD NOTHING;
		CREATE TABLE many (id bigint) PARTITION BY LIST (id);
		CREATE TABLE many_1 PARTITION OF many FOR VALUES IN (1); CREATE TABLE many_2 PARTITION OF many FOR VALUES IN (2);
		CREATE TRIGGER keep BEFORE DELETE ON many FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER copied BEFORE UPDATE ON many FOR EACH ROW EXECUTE FUNCTION keep(); ALTER TABLE ONLY many DISABLE TRIGGER copied;
		CREATE TRIGGER own BEFORE DELETE ON many_2 FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.plain (id bigint);
		CREATE TRIGGER far BEFORE DELETE ON elsewhere.plain FOR EACH ROW EXECUTE FUNCTION keep()`)
	for _, c := range []struct {
		table   string
		deletes bool
		want    []string
	}{
		{"plain", true, []string{"trigger change of plain", "trigger keep of plain", "rule hide of plain"}},
		{"plain", false, []string{"trigger change of plain", "trigger touch of plain"}},
		{"many", true, []string{"trigger keep of many", "trigger own of many_2"}},
		{"many_2", true, []string{"trigger keep of many_2", "trigger own of many_2"}},
		{"many", false, []string{"trigger copied of many_1", "trigger copied of many_2"}},
		{"nowhere", true, nil},
	} {
		found := assert.Must(b.Schema.KeepingTriggers(context.Background(), catalog.Table{Schema: "public", Name: c.table}, c.deletes))(t)
		var got []string
		for _, k := range found {
			got = append(got, k.String())
		}
		assert.That(t, slices.Equal(got, c.want), "%s, deletes %t: %q, want %q", c.table, c.deletes, got, c.want)
	}
}

func TestMustDiffer_OfTwoNamesOfADatabaseTheLaterIsRefused(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, servicetest.Migrated(""))
	named := func(name, url string) *repo.Database {
		d := assert.Must(repo.Open(t.Context(), name, url))(t)
		t.Cleanup(d.Close)
		return d
	}
	main, ci, sec := named("main", url), named("ci", url+"&application_name=second"), named("sec", databases.Clone(t, servicetest.Migrated("")))
	repo.MustDiffer([]*repo.Database{main, ci, sec})
	// The second name is known to be the second as soon as the first has a connection, though it has been there before.
	for _, d := range []*repo.Database{ci, sec, main} {
		if err := d.Ping(t.Context()); err != nil {
			t.Fatal(d.Name, err)
		}
	}
	for range 2 {
		_, err := ci.Leases.ListLeases(t.Context(), nil)
		same, ok := errors.AsType[*dberr.SameDatabaseError](err)
		assert.Require(t, ok && errors.Is(err, dberr.ErrUnreachable) && same.First == "main", "ci: %v", err)
		if text := same.Error(); !strings.Contains(text, "databases.main.url") || !strings.Contains(text, "remove databases.ci.url") {
			t.Error(text)
		}
		for _, d := range []*repo.Database{main, sec} {
			if _, err := d.Leases.ListLeases(t.Context(), nil); err != nil {
				t.Error(d.Name, err)
			}
		}
	}
}
