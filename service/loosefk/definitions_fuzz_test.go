package loosefk

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
)

// Whatever is in a file: it is refused with words that name the file, or every definition in it is
// whole, and reading it again gives the same.
func FuzzDefinitions(f *testing.F) {
	f.Add(devdb.Definitions())
	for _, content := range []string{
		"", "---\n", "a: [", "a:\n  - column: b\n", "{a: [{table: p, column: c, on_delete: async_delete}]}",
		"a:\n  - table: p\n    column: [x, y]\n    key: [k, l]\n    on_delete: async_nullify\n",
		"sales.a:\n  - &x {table: sales.p, column: c, on_delete: update_column_to, target_column: s, target_value: 4}\n  - *x\n",
		"a:\n  - {table: p, column: c, on_delete: async_delete, conditions: [{column: d, value: e}], delete_limit: 0}\n",
		"? [a]\n: b\n", "a: &a\n  - *a\n", "<<: {a: b}\n", "a: !!binary x\n", "--- a\n--- b\n",
	} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		first, second := definitionsFile{Definitions: Definitions{File: "d.yml"}}, definitionsFile{Definitions: Definitions{File: "d.yml"}}
		first.read([]byte(content))
		second.read([]byte(content))
		assert.That(t, reflect.DeepEqual(first, second), "read twice it is\n%+v and\n%+v", first, second)
		for _, p := range first.problems {
			if !strings.HasPrefix(p, "d.yml: ") || len(p) < len("d.yml: .") {
				t.Errorf("the problem %q does not say where it is, or what", p)
			}
		}
		if len(first.problems) > 0 {
			return
		}
		for _, k := range first.Keys {
			if k.Table == "" || k.Parent == "" || len(k.Columns) < 1 || len(k.Columns) > 4 || k.OnDelete == "" ||
				len(k.Key) > 0 && len(k.Key) != len(k.Columns) || k.DeleteLimit < 0 {
				t.Errorf("this was accepted: %+v", k)
			}
		}
	})
}

// A definition that is added to a file is in it, the others are as they were, and taking it out again
// leaves them so.
func FuzzDefinitionsEdit(f *testing.F) {
	f.Add(devdb.Definitions())
	f.Add("a:\n  - {table: p, column: c, on_delete: async_delete} # why\n")
	f.Add("# nothing\n")
	f.Add("\r ")
	f.Add("a:\r\n  - {table: p, column: c, on_delete: async_delete}\r\n")
	f.Add("zz_new:\n  - {table: p, column: c, on_delete: async_delete}\n")
	f.Fuzz(func(t *testing.T, content string) {
		before, err := definitionsIn(t, content)
		if err != nil {
			return
		}
		added := repo.LooseForeignKey{Table: "zz_new", Parent: "zz_parent", Columns: []string{"zz_id"}, OnDelete: repo.AsyncDelete}
		keys := slices.Clone(before.Keys)
		if err := before.Add(added); err != nil {
			return
		}
		after, err := LoadDefinitions(before.File)
		if err != nil || len(after.Keys) != len(keys)+1 {
			text, _ := os.ReadFile(before.File)
			t.Fatalf("%v, %d definitions, want %d:\n%s", err, len(after.Keys), len(keys)+1, text)
		}
		assert.NoError(t, after.Remove(added))
		again, err := LoadDefinitions(before.File)
		if err != nil || !slices.EqualFunc(again.Keys, keys, func(a, b repo.LooseForeignKey) bool { return reflect.DeepEqual(a, b) }) {
			t.Errorf("%v: %+v, want %+v", err, again, keys)
		}
	})
}
