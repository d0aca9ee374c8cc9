package lfk_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// keyValues are few for each type, so that keys of several columns have parts in common.
var keyValues = map[string][]string{
	"bigint": {"0", "1", "-9223372036854775808", "9223372036854775807"},
	"uuid": {
		"00000000-0000-0000-0000-000000000000", "0198f000-0000-7000-8000-000000000001",
		"ffffffff-ffff-ffff-ffff-ffffffffffff",
	},
	"text": {"", "NULL", "a,b", `"it's" {}\`, "1"},
}

// comparedTable is a child of the parent, or of another child by its id.
type comparedTable struct {
	name, parent, action string
	// columns refer to the keys of the parent.
	columns, keys []string
}

// comparison has two databases with the same rows. One has loose foreign keys, the other one real ones.
type comparison struct {
	loose, enforced *servicetest.Estate
	parent          string
	// kinds are the types of the parent's key.
	kinds   []string
	keys    []string
	parents [][]string
	tables  []comparedTable
	rows    int
}

func (w *comparison) both(sql string, args ...any) {
	w.loose.Exec("main", sql, args...)
	w.enforced.Exec("main", sql, args...)
}

// columns are the key's columns with this prefix and their types.
func (w *comparison) columns(prefix string) (declared string) {
	for i, kind := range w.kinds {
		declared += fmt.Sprintf("%s%d %s, ", prefix, i, kind)
	}
	return declared
}

// insert adds a row to a table with the columns of the key. id is a child's, NULLs are "NULL"
// unquoted.
func (w *comparison) insert(table, id string, key []string, null func(int) bool) {
	values := []string{}
	for i, v := range key {
		if null(i) {
			values = append(values, "NULL")
			continue
		}
		values = append(values, "'"+strings.ReplaceAll(v, "'", "''")+"'::"+w.kinds[i])
	}
	w.both("INSERT INTO " + table + " VALUES (" + id + strings.Join(values, ", ") + ")")
}

// makeParent makes a parent with a key of one to three columns, and its rows.
func (w *comparison) makeParent(t *rapid.T) {
	types := slices.Sorted(maps.Keys(keyValues))
	w.kinds = rapid.SliceOfN(rapid.SampledFrom(types), 1, 3).Draw(t, "types of the key")
	for i := range w.kinds {
		w.keys = append(w.keys, fmt.Sprint("k", i))
	}
	w.both("CREATE TABLE " + w.parent + " (" + w.columns("k") + "PRIMARY KEY (" + strings.Join(w.keys, ", ") + "))")
	row := rapid.Custom(func(t *rapid.T) (key []string) {
		for _, kind := range w.kinds {
			key = append(key, rapid.SampledFrom(keyValues[kind]).Draw(t, kind))
		}
		return key
	})
	w.parents = rapid.SliceOfNDistinct(row, 1, 10, func(key []string) string {
		return strings.Join(key, "\x00")
	}).Draw(t, "parents")
	for _, key := range w.parents {
		w.insert(w.parent, "", key, func(int) bool { return false })
	}
}

// makeChild makes a child of the parent with its rows, and perhaps a child of that one. Some rows
// refer to nothing or have a key with a NULL.
func (w *comparison) makeChild(t *rapid.T, name string) {
	actions := rapid.SampledFrom([]string{"CASCADE", "SET NULL"})
	child := comparedTable{name: name, parent: w.parent, action: actions.Draw(t, "action"), keys: w.keys}
	for i := range w.kinds {
		child.columns = append(child.columns, fmt.Sprint("r", i))
	}
	w.both("CREATE TABLE " + name + " (id bigint PRIMARY KEY, " + strings.TrimSuffix(w.columns("r"), ", ") + ")")
	rows := rapid.IntRange(0, 12).Draw(t, "rows")
	for id := 1; id <= rows; id++ {
		nulls := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 7}).Draw(t, "NULLs")
		w.insert(name, fmt.Sprint(id, ", "), rapid.SampledFrom(w.parents).Draw(t, "parent"),
			func(i int) bool { return nulls>>i&1 == 1 })
	}
	w.rows = max(w.rows, rows)
	w.tables = append(w.tables, child)
	if !rapid.Bool().Draw(t, "has a child") {
		return
	}
	grandchild := comparedTable{
		name: name + "_of", parent: name, action: actions.Draw(t, "action of its child"),
		columns: []string{"r0"}, keys: []string{"id"},
	}
	w.both(fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY, r0 bigint);
		INSERT INTO %[1]s SELECT row_number() OVER (), c.id FROM %s c, generate_series(0, c.id %% 3)`, grandchild.name, name))
	w.tables = append(w.tables, grandchild)
}

// define makes the foreign keys: real ones here, definitions and triggers there. Triggers and
// definitions name the columns of a key in an order of their own.
func (w *comparison) define(t *rapid.T) string {
	definitions := map[string][]string{}
	tracked := map[string]bool{}
	for _, c := range w.tables {
		w.enforced.Exec("main", "ALTER TABLE "+c.name+" ADD FOREIGN KEY ("+strings.Join(c.columns, ", ")+") REFERENCES "+
			c.parent+" ON DELETE "+c.action)
		w.loose.Exec("main", "CREATE INDEX ON "+c.name+" ("+strings.Join(c.columns, ", ")+")")
		if !tracked[c.parent] {
			tracked[c.parent] = true
			track(w.loose, c.parent, rapid.Permutation(c.keys).Draw(t, "order of the trigger")...)
		}
		var columns, keys []string
		for _, i := range rapid.Permutation(indexes(c.keys)).Draw(t, "order of the definition") {
			columns, keys = append(columns, c.columns[i]), append(keys, c.keys[i])
		}
		action := map[string]string{"CASCADE": "async_delete", "SET NULL": "async_nullify"}[c.action]
		definitions[c.name] = append(definitions[c.name], fmt.Sprintf(
			"  - {table: %s, column: %s, key: %s, on_delete: %s, delete_limit: %d}\n", c.parent, list(columns), list(keys), action, rapid.IntRange(1, 5).Draw(t, "delete_limit")))
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(definitions)) {
		fmt.Fprintf(&all, "%s:\n%s", name, strings.Join(definitions[name], ""))
	}
	return all.String()
}

// list is how a definition names columns.
func list(columns []string) string {
	if len(columns) == 1 {
		return columns[0]
	}
	return "[" + strings.Join(columns, ", ") + "]"
}

func indexes(of []string) (all []int) {
	for i := range of {
		all = append(all, i)
	}
	return all
}

// remove deletes some of the parents, and some rows of children by their ids.
func (w *comparison) remove(t *rapid.T) {
	for range rapid.IntRange(0, 4).Draw(t, "deleted parents") {
		var where []string
		for i, v := range rapid.SampledFrom(w.parents).Draw(t, "parent") {
			where = append(where, fmt.Sprintf("k%d = '%s'::%s", i, strings.ReplaceAll(v, "'", "''"), w.kinds[i]))
		}
		w.both("DELETE FROM " + w.parent + " WHERE " + strings.Join(where, " AND "))
	}
	if rapid.Bool().Draw(t, "all of a part of the key") {
		w.both("DELETE FROM "+w.parent+" WHERE k0::text = $1", rapid.SampledFrom(w.parents).Draw(t, "part")[0])
	}
	id := rapid.IntRange(0, w.rows).Draw(t, "child")
	w.both("DELETE FROM "+rapid.SampledFrom(w.tables).Draw(t, "of").name+" WHERE id = $1", id)
}

// clean runs the worker with tight limits until the queue is empty. On a slow machine a statement may
// reach its time limit: then the next run does it.
func (w *comparison) clean(t *rapid.T, definitions string) {
	size := rapid.IntRange(1, 4).Draw(t, "batch_size")
	limit := rapid.Int64Range(1, 9).Draw(t, "max_deletes")
	s := w.loose.Service(definitions, servicetest.Batches(size, limit), func(c *service.Config) {
		service.Settings[lfk.Config](c).MaxUpdates = rapid.Int64Range(1, 9).Draw(t, "max_updates")
	})
	var last run.Run
	for range 200 {
		if w.loose.Value("main", "SELECT count(*) FROM loose_foreign_keys_deleted_records") == "0" {
			return
		}
		dueAgain(w.loose, "main")
		last = servicetest.RunBatch(w.loose.T, s, "main")
		if last.Counts["dead_records"] > 0 {
			break
		}
	}
	t.Fatalf("records are left: %s: %s, %v\n%s", last.State, last.Error, last.Counts, definitions)
}

// compare fails unless both have the same rows.
func (w *comparison) compare(t *rapid.T, definitions string) {
	for _, table := range append([]comparedTable{{name: w.parent}}, w.tables...) {
		rows := "SELECT string_agg(c::text, ' ' ORDER BY c::text) FROM " + table.name + " c"
		if got, want := w.loose.Value("main", rows), w.enforced.Value("main", rows); got != want {
			t.Fatalf("%s has %s, with a real foreign key %s\n%s", table.name, got, want, definitions)
		}
	}
}

// With any key and any deleted rows, the remaining rows are those that PostgreSQL's own foreign
// keys leave.
func TestLooseForeignKeysCleanup_LeavesWhatRealForeignKeysLeave(t *testing.T) {
	loose, enforced := servicetest.New(servicetest.Parallel(t), "", "main"), servicetest.New(t, "", "main")
	loose.Install()
	number := 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		w := &comparison{loose: loose, enforced: enforced, parent: fmt.Sprint("p", number)}
		w.makeParent(t)
		for i := range rapid.IntRange(1, 3).Draw(t, "children") {
			w.makeChild(t, fmt.Sprintf("c%d_%d", number, i))
		}
		definitions := w.define(t)
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			w.remove(t)
			w.clean(t, definitions)
			w.compare(t, definitions)
		}
		for _, table := range append(slices.Clone(w.tables), comparedTable{name: w.parent}) {
			w.both("DROP TABLE " + table.name + " CASCADE")
		}
	})
}
