package orphanaudit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/orphanaudit"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// looking is a search that writes nothing.
func looking(e *servicetest.Estate, definitions string) *orphanaudit.Search {
	e.T.Helper()
	keys := e.Keys(definitions)
	return &orphanaudit.Search{
		Audit: orphanaudit.Audit{Databases: keys.Databases, Keys: keys.Definitions.Keys}, Limit: 1000,
	}
}

// TestSearch_ABeginningIsOfOneTask: behind a key of one definition another one has keys of its own.
func TestSearch_ABeginningIsOfOneTask(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE q (id bigint PRIMARY KEY); ALTER TABLE c ADD type text;
		INSERT INTO c (p_id, type) VALUES (5, 'P'), (1, 'Q'), (7, 'P')`)
	search := looking(e, `
c:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: type, value: P}]}
  - {table: q, column: p_id, on_delete: async_delete, conditions: [{column: type, value: Q}]}
`)
	search.After = repo.KeyOf("5")
	_, err := search.Run(t.Context())
	if !errors.Is(err, orphanaudit.ErrAfter) || !strings.Contains(err.Error(), "c.p_id -> p if type = P on main, c.p_id -> q if type = Q on main") {
		t.Errorf("%v", err)
	}
	search.Which = func(task *orphanaudit.Task) bool { return task.Key.Parent == "p" }
	found, err := search.Run(t.Context())
	if err != nil || len(found) != 1 || found[0].Keys != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	for _, wrong := range []repo.Key{repo.KeyOf("5", "6"), repo.KeyOf("five")} {
		search.After = wrong
		if _, err := search.Run(t.Context()); !errors.Is(err, orphanaudit.ErrAfter) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	search.Which = func(*orphanaudit.Task) bool { return false }
	_, err = search.Run(t.Context())
	if !errors.Is(err, orphanaudit.ErrNoTask) || !strings.Contains(err.Error(), "there are c.p_id -> p if type = P on main, c.p_id -> q") {
		t.Errorf("%v", err)
	}
}

// TestSearch_KeysAreWalkedInTheOrderOfAnIndex: in another order each step would read them all.
func TestSearch_KeysAreWalkedInTheOrderOfAnIndex(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE k (m int, n int, PRIMARY KEY (m, n)); CREATE TABLE d (x int, y int, type text); CREATE INDEX ON d (y, x);
		INSERT INTO d VALUES (1, 2, 'D')`)
	const columns = "d: [{table: k, column: [x, y], key: [m, n], on_delete: async_delete, conditions: [{column: type, value: D}]}]"
	const turned = "d: [{table: k, column: [y, x], key: [n, m], on_delete: async_delete}]"
	wants := func(definitions, fault string) {
		t.Helper()
		found, err := looking(e, definitions).Run(t.Context())
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].Fault, fault) || (fault == "") != (found[0].Keys == 1) {
			t.Errorf("%+v, %v; want %q", found, err, fault)
		}
	}
	wants(columns, "orphans of d need an index on (x, y), in this order")
	wants(turned, "")
	e.Exec("main", `CREATE INDEX ON d (type, x, y)`)
	wants(columns, "")
}

// TestSearch_HomesThatRecordInTwoFormsAreNotFixed: records are written in that of the first.
func TestSearch_HomesThatRecordInTwoFormsAreNotFixed(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "", "main", "ci", "sec")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	e.Exec("sec", `CREATE TABLE p (id text PRIMARY KEY)`)
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c (p_id) VALUES (1)`)
	e.Install()
	for _, home := range []string{"main", "sec"} {
		keys := e.Keys("")
		keys.Only = home
		if _, err := keys.Track(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
	}
	search := looking(e, servicetest.OneChild)
	search.Fix = &orphanaudit.Fixing{Main: search.Databases[0], Holder: "somebody"}
	found, err := search.Run(t.Context())
	if err != nil || !strings.Contains(found[0].Fault, "p records its keys in one form on main and in another one on sec") {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestSearch_LookingNeedsNoMoreThanSELECT on the parents and the children.
func TestSearch_LookingNeedsNoMoreThanSELECT(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO c (p_id) VALUES (1)`)
	search := looking(e, servicetest.OneChild)
	search.Databases = []*repo.Database{e.As("orphan_reader")}
	for _, table := range []string{"c", "p"} {
		e.Exec("main", `REVOKE ALL ON `+table+` FROM orphan_reader`)
		found, err := search.Run(t.Context())
		if err != nil || !strings.Contains(found[0].Fault, "GRANT SELECT ON public."+table+" TO orphan_reader") {
			t.Errorf("%+v, %v", found, err)
		}
		e.Exec("main", `GRANT SELECT ON `+table+` TO orphan_reader`)
	}
	if found, err := search.Run(t.Context()); err != nil || found[0].Fault != "" || found[0].Keys != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}
