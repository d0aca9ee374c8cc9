package lfk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// definitionsIn writes a file d.yml and loads it.
func definitionsIn(t *testing.T, content string) (*Definitions, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "d.yml")
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return LoadDefinitions(file)
}

// loaded loads a file that has no mistake.
func loaded(t *testing.T, content string) *Definitions {
	t.Helper()
	return assert.Must(definitionsIn(t, content))(t)
}

// problemsIn loads a file and returns what is wrong with it, without its folder.
func problemsIn(t *testing.T, content string) []string {
	t.Helper()
	_, err := definitionsIn(t, content)
	var wrong *DefinitionsError
	assert.Require(t, errors.As(err, &wrong), "got %v, want a *DefinitionsError", err)
	var out []string
	for _, p := range wrong.Problems {
		out = append(out, p[strings.LastIndex(p[:strings.Index(p, "d.yml")], "/")+1:])
	}
	return out
}

func TestLoadDefinitions_ReadsEveryKeyInFileOrder(t *testing.T) {
	d := loaded(t, `---
packages:
  - table: projects
    column: project_id
    on_delete: update_column_to
    target_column: status
    target_value: 4
    delete_limit: 20
    worker_class: "LooseForeignKeys::CiPipelinesBuildsCleanupCronWorker"
notes:
  - table: vulnerabilities
    column: noteable_id
    conditions:
      - column: noteable_type
        value: "Vulnerability"
      - { value: true, column: system }
    on_delete: async_delete
  - {table: users, column: author_id, on_delete: async_nullify}
`)
	want := []lfk.Definition{
		{
			Table: "packages", Columns: []string{"project_id"}, Parent: "projects", OnDelete: "update_column_to",
			TargetColumn: "status", TargetValue: "4", DeleteLimit: 20,
		},
		{
			Table: "notes", Columns: []string{"noteable_id"}, Parent: "vulnerabilities", OnDelete: "async_delete",
			Conditions: []lfk.ColumnValue{{Column: "noteable_type", Value: "Vulnerability"}, {Column: "system", Value: "true"}},
		},
		{Table: "notes", Columns: []string{"author_id"}, Parent: "users", OnDelete: "async_nullify"},
	}
	assert.That(t, reflect.DeepEqual(d.Keys, want), "got %+v\nwant %+v", d.Keys, want)
	if len(d.Warnings) != 1 || d.Warnings[0].Code != "not_sorted" || d.Warnings[0].Object != "notes" {
		t.Errorf("got %+v, want one warning that notes stands below packages", d.Warnings)
	}
}

func TestLoadDefinitions_ValuesHaveTheTextFormOfPostgreSQL(t *testing.T) {
	for written, want := range map[string]string{
		`2`: "2", `"2"`: "2", `-7`: "-7", `0x10`: "16", `1_000`: "1000", `true`: "true", `False`: "false", `''`: "",
		`yes`: "yes", `"null"`: "null", `'it''s -- "x"; $1'`: `it's -- "x"; $1`, `!!str 5`: "5", `9223372036854775808`: "9223372036854775808",
		"|-\n        two\n        lines": "two\nlines", `Ä ö`: "Ä ö",
	} {
		d, err := definitionsIn(t, `
c:
  - table: p
    column: p_id
    on_delete: update_column_to
    target_column: x
    target_value: `+written+"\n")
		if err != nil {
			t.Errorf("%s: %v", written, err)
		} else if got := d.Keys[0].TargetValue; got != want {
			t.Errorf("%s: got %q, want %q", written, got, want)
		}
	}
}

func TestLoadDefinitions_NamesAreLiteral(t *testing.T) {
	d := loaded(t, `
"Weird Table-1":
  - {table: 'select', column: "a.b\"c", on_delete: async_delete}
select:
  - {table: "public.p", column: "%s {child} $1", on_delete: async_delete}
"123":
  - {table: 'true', column: '~', on_delete: async_delete}
`)
	var got []string
	for _, k := range d.Keys {
		got = append(got, k.Table, k.Parent, k.Columns[0])
	}
	want := []string{"Weird Table-1", "select", `a.b"c`, "select", "public.p", "%s {child} $1", "123", "true", "~"}
	assert.That(t, reflect.DeepEqual(got, want), "got %q, want %q", got, want)
}

func TestLoadDefinitions_NothingToDoIsNoError(t *testing.T) {
	for _, content := range []string{"", "\n", "# nothing yet\n", "---\n", "--- {}\n", "{}", "~", "\ufeff---\r\n", "c: []"} {
		d, err := definitionsIn(t, content)
		assert.That(t, err == nil && len(d.Keys) == 0 && len(d.Warnings) == 0, "%q: got %+v, %v", content, d, err)
	}
}

func TestLoadDefinitions_AliasesStandForWhatTheyName(t *testing.T) {
	d := loaded(t, `
a:
  - &entry {table: &p projects, column: project_id, on_delete: &del async_delete}
b:
  - *entry
c: &list
  - {table: *p, column: x, on_delete: *del, conditions: [&type {column: type, value: X}]}
d: *list
e:
  - {table: *p, column: y, on_delete: *del, conditions: [*type]}
`)
	var got []string
	for _, k := range d.Keys {
		got = append(got, fmt.Sprintf("%s%v", k, k.Conditions))
	}
	want := []string{
		"a.project_id -> projects[]", "b.project_id -> projects[]", "c.x -> projects[{type X}]", "d.x -> projects[{type X}]",
		"e.y -> projects[{type X}]",
	}
	assert.That(t, reflect.DeepEqual(got, want), "got %q, want %q", got, want)
}

func TestLoadDefinitions_IdenticalEntryIsIgnoredWithAWarning(t *testing.T) {
	d := loaded(t, `
c:
  - {table: p, column: p_id, on_delete: async_delete}
  - {table: p, column: p_id, on_delete: async_nullify}
  - {on_delete: async_delete, table: p, column: "p_id", worker_class: Other}
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: a, value: b}]}
`)
	assert.That(t, len(d.Keys) == 3, "got %d definitions, want 3: only the third entry is a repetition", len(d.Keys))
	assert.That(t, len(d.Warnings) == 1 && d.Warnings[0].Code == "duplicate_definition" &&
		d.Warnings[0].Object == "c.p_id -> p" && strings.Contains(d.Warnings[0].Advice, "c[2]"),
		"got %+v, want one warning that names c[2]", d.Warnings)
}

func TestLoadDefinitions_ByParentKeepsFileOrder(t *testing.T) {
	d := loaded(t, `
z:
  - {table: p, column: a, on_delete: async_delete}
  - {table: q, column: b, on_delete: async_delete}
a:
  - {table: p, column: c, on_delete: async_delete}
`)
	got := map[string]string{}
	for parent, keys := range d.ByParent() {
		for _, k := range keys {
			got[parent] += k.Table + "." + k.Columns[0] + " "
		}
	}
	want := map[string]string{"p": "z.a a.c ", "q": "z.b "}
	assert.That(t, reflect.DeepEqual(got, want), "got %v, want %v", got, want)
}

func TestLoadDefinitions_ThreeMistakesAreAllListed(t *testing.T) {
	got := problemsIn(t, `
c:
  - {table: p, column: p_id, on_delete: async_delete, only_if: x}
  - {table: p, column: p_id, on_delete: update_column_to, target_column: state}
d:
  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 0}
`)
	want := []string{
		`d.yml:3: c[0].only_if: is an unknown key: use one of table, column, key, on_delete, target_column, ` +
			`target_value, conditions, delete_limit, worker_class`,
		`d.yml:4: c[1].target_value: is required with on_delete: update_column_to`,
		`d.yml:6: d[0].delete_limit: is the integer "0": write an integer of at least 1`,
	}
	assert.That(t, reflect.DeepEqual(got, want), "got %q\nwant %q", got, want)
}

func TestLoadDefinitions_UnreadableFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "absent.yml")
	_, err := LoadDefinitions(file)
	var wrong *DefinitionsError
	if !errors.As(err, &wrong) || err.Error() != "cannot read "+file+" (no such file or directory): correct "+
		"workers.loose_foreign_keys_cleanup.definitions" {
		t.Errorf("got %v", err)
	}
	if _, err = LoadDefinitions(t.TempDir()); err == nil {
		t.Error("a folder was read as a file")
	}
}

// malformed is a file and what has to be said of it. Without a file name, the place is in line 1.
type malformed struct{ content, place, reason string }

const (
	goodEntry   = "table: p, column: p_id, on_delete: async_delete"
	updateEntry = "table: p, column: p_id, on_delete: update_column_to"
)

func wantMistakes(t *testing.T, cases []malformed) {
	t.Helper()
	for _, c := range cases {
		got := problemsIn(t, c.content)
		want := c.place
		if !strings.HasPrefix(want, "d.yml") {
			want = "d.yml:1: " + want
		}
		if !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], c.reason) {
			t.Errorf("%s\ngot  %q\nwant %q and %q", c.content, got, want, c.reason)
		}
		assert.That(t, strings.Count(strings.Join(got, "\n"), "d.yml") == len(got) && len(got) <= 3,
			"%s: every problem is named once: %q", c.content, got)
	}
}

func TestLoadDefinitions_MistakesAreFatal(t *testing.T) {
	long := strings.Repeat("ä", 32)
	wantMistakes(t, []malformed{
		{"- a\n- b", "", "is a list: write a mapping"},
		{"just words", "", `is the string "just words": write a mapping`},
		{"c: [", "", "is not YAML: did not find expected node content"},
		{"c: \"\xff\"", "d.yml: ", "is not YAML"},
		{"c: *nowhere", "d.yml: ", "is not YAML: unknown anchor 'nowhere' referenced"},
		{"c: []\n---\nd: []", "d.yml:2: ", "a second YAML document"},
		{"c: []\n---\nd: [", "d.yml:3: ", "is not YAML"},
		{"c: []\nd: []\nc: []", "d.yml:3: c: ", "occurs twice"},
		{"c: &c [*c]", "c[0]: ", "is a list"},
		{"123: []", "123: ", `is the integer "123", but a table name must be a string: put the name in quotes`},
		{"true: []", "true: ", `is the boolean "true"`},
		{"~: []", "~: ", "is null"},
		{"[a]: []", "", "is a list"},
		{"'': []", "", "the table name is empty"},
		{long + ": []", long + ": ", "has 64 bytes"},
		{"\"a\\0b\": []", "a\x00b: ", "has characters"},
		{"c: &c []\n<<: {d: []}", "d.yml:2: <<: ", "merge keys are not supported"},
		{"c:", "c: ", "is null: write a list of entries"},
		{"c: {" + goodEntry + "}", "c: ", "is a mapping: write a list of entries"},
		{"c: p", "c: ", `is the string "p"`},
		{"c: [p]", "c[0]: ", `is the string "p": write a mapping`},
		{"c: [~]", "c[0]: ", "is null: write a mapping"},
		{"c: [{}]", "c[0].table: ", "is required"},
		{"c: [{table: p, on_delete: async_delete}]", "c[0].column: ", "is required"},
		{"c: [{table: p, column: p_id}]", "c[0].on_delete: ", "is required"},
		{"c: [{table: '', column: p_id, on_delete: async_delete}]", "c[0].table: ", "is empty"},
		{"c: [{table: , column: p_id, on_delete: async_delete}]", "c[0].table: ", "is null"},
		{"c: [{table: 5, column: p_id, on_delete: async_delete}]", "c[0].table: ", `is the integer "5"`},
		{"c: [{table: " + long + ", column: p_id, on_delete: async_delete}]", "c[0].table: ", "has 64 bytes"},
		{"c: [{table: p, column: [a], on_delete: async_delete}]", "c[0].column: ", "is a list"},
		{
			"c: [{table: p, column: p_id, on_delete: ':async_delete'}]", "c[0].on_delete: ",
			`is the string ":async_delete": use one of async_delete, async_nullify, update_column_to`,
		},
		{"c: [{table: p, column: p_id, on_delete: ~}]", "c[0].on_delete: ", "is null"},
		{"c: [{" + goodEntry + ", table: q}]", "c[0].table: ", "occurs twice"},
		{"c: [{" + goodEntry + ", Table: q}]", "c[0].Table: ", "is an unknown key"},
		{"c: [{" + goodEntry + ", 1: q}]", "c[0].1: ", "is an unknown key"},
		{"c: [{" + goodEntry + ", <<: {delete_limit: 1}}]", "c[0].<<: ", "merge keys are not supported"},
		{"c: [{" + goodEntry + ", target_column: x}]", "c[0].target_column: ", "is allowed only with on_delete: " +
			"update_column_to"},
		{"c: [{" + goodEntry + ", target_value: 1}]", "c[0].target_value: ", "is allowed only with on_delete: " +
			"update_column_to"},
		{"c: [{" + updateEntry + ", target_value: 1}]", "c[0].target_column: ", "is required"},
		{"c: [{" + updateEntry + ", target_column: ''}]", "c[0].target_column: ", "is empty"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: ~}]", "c[0].target_value: ", "is null"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 1.5}]", "c[0].target_value: ", `is the number "1.5"`},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 2020-01-01}]", "c[0].target_value: ", `is "2020-01-01"`},
		{"c: [{" + updateEntry + ", target_column: x, target_value: [1]}]", "c[0].target_value: ", "is a list"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 99999999999999999999}]", "c[0].target_value: ", "is the number"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: !!int abc}]", "c[0].target_value: ", "is the integer"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: \"\\0\"}]", "c[0].target_value: ", "is the string"},
		{"c: [{" + goodEntry + ", conditions: []}]", "c[0].conditions: ", "is an empty list"},
		{"c: [{" + goodEntry + ", conditions: ~}]", "c[0].conditions: ", "is null"},
		{"c: [{" + goodEntry + ", conditions: {column: a, value: b}}]", "c[0].conditions: ", "is a mapping"},
		{"c: [{" + goodEntry + ", conditions: [a]}]", "c[0].conditions[0]: ", `is the string "a"`},
		{"c: [{" + goodEntry + ", conditions: [{column: a}]}]", "c[0].conditions[0].value: ", "is required"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: 1}, {value: b}]}]", "c[0].conditions[1].column: ", "is required"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: ~}]}]", "c[0].conditions[0].value: ", "is null"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: b, operator: '>'}]}]", "c[0].conditions[0].operator: ", "is an unknown key"},
		{"c: [{" + goodEntry + ", delete_limit: '5'}]", "c[0].delete_limit: ", `is the string "5"`},
		{"c: [{" + goodEntry + ", delete_limit: -1}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", delete_limit: 1.5}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", delete_limit: ~}]", "c[0].delete_limit: ", "is null"},
		{"c: [{" + goodEntry + ", delete_limit: 9223372036854775808}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", worker_class: ~}]", "c[0].worker_class: ", "is null"},
		{"c: [{" + goodEntry + ", worker_class: 5}]", "c[0].worker_class: ", `is the integer "5"`},
	})
}

// Any file is refused with a message that names it, or every definition in it is whole. Reading it
// again gives the same.
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
			assert.That(t, strings.HasPrefix(p, "d.yml:") && len(p) >= len("d.yml: ."),
				"the problem %q does not say where it is, or what", p)
		}
		if len(first.problems) > 0 {
			return
		}
		for _, k := range first.Keys {
			assert.That(t, k.Table != "" && k.Parent != "" && len(k.Columns) >= 1 && len(k.Columns) <= 4 &&
				k.OnDelete != "" && (len(k.Key) == 0 || len(k.Key) == len(k.Columns)) && k.DeleteLimit >= 0,
				"this was accepted: %+v", k)
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
		added := lfk.Definition{Table: "zz_new", Parent: "zz_parent", Columns: []string{"zz_id"}, OnDelete: lfk.AsyncDelete}
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
		if err != nil || !slices.EqualFunc(again.Keys, keys, func(a, b lfk.Definition) bool { return reflect.DeepEqual(a, b) }) {
			t.Errorf("%v: %+v, want %+v", err, again, keys)
		}
	})
}

// TestDefinitions_AnEditNamesTheFolderInWhichItCannotCreateAFile and not the temporary file.
func TestDefinitions_AnEditNamesTheFolderInWhichItCannotCreateAFile(t *testing.T) {
	folder := t.TempDir()
	// No temporary name beside this one is short enough. Even root cannot create it.
	file := filepath.Join(folder, strings.Repeat("d", 250)+".yml")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	d := assert.Must(LoadDefinitions(file))(t)
	err := d.Add(lfk.Definition{Table: "c", Parent: "p", Columns: []string{"p_id"}, OnDelete: "async_delete"})
	assert.Require(t, err != nil, "edited")
	assert.Contains(t, err.Error(), "cannot create a file in the folder "+folder+", which replaces "+filepath.Base(file)+" (file name too long): ",
		"run the command as a user who can write to the folder", "add the following lines with an editor, then run this command again\nc:\n  - table: p\n")
	assert.Lacks(t, err.Error(), ".yml.")
}
