package loosefk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

// definitionsIn writes a file d.yml and loads it.
func definitionsIn(t *testing.T, content string) (*Definitions, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "d.yml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadDefinitions(file)
}

// problemsIn loads a file and returns what is wrong with it, without its folder.
func problemsIn(t *testing.T, content string) []string {
	t.Helper()
	_, err := definitionsIn(t, content)
	var wrong *DefinitionsError
	if !errors.As(err, &wrong) {
		t.Fatalf("got %v, want a *DefinitionsError", err)
	}
	var out []string
	for _, p := range wrong.Problems {
		out = append(out, p[strings.LastIndex(p[:strings.Index(p, "d.yml")], "/")+1:])
	}
	return out
}

func TestLoadDefinitions_ReadsEveryKeyInFileOrder(t *testing.T) {
	d, err := definitionsIn(t, `---
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
	if err != nil {
		t.Fatal(err)
	}
	want := []repo.LooseForeignKey{
		{
			Table: "packages", Columns: []string{"project_id"}, Parent: "projects", OnDelete: "update_column_to",
			TargetColumn: "status", TargetValue: "4", DeleteLimit: 20,
		},
		{
			Table: "notes", Columns: []string{"noteable_id"}, Parent: "vulnerabilities", OnDelete: "async_delete",
			Conditions: []repo.ColumnValue{{Column: "noteable_type", Value: "Vulnerability"}, {Column: "system", Value: "true"}},
		},
		{Table: "notes", Columns: []string{"author_id"}, Parent: "users", OnDelete: "async_nullify"},
	}
	if !reflect.DeepEqual(d.Keys, want) {
		t.Errorf("got %+v\nwant %+v", d.Keys, want)
	}
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
	d, err := definitionsIn(t, `
"Weird Table-1":
  - {table: 'select', column: "a.b\"c", on_delete: async_delete}
select:
  - {table: "public.p", column: "%s {child} $1", on_delete: async_delete}
"123":
  - {table: 'true', column: '~', on_delete: async_delete}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range d.Keys {
		got = append(got, k.Table, k.Parent, k.Columns[0])
	}
	want := []string{"Weird Table-1", "select", `a.b"c`, "select", "public.p", "%s {child} $1", "123", "true", "~"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoadDefinitions_NothingToDoIsNoError(t *testing.T) {
	for _, content := range []string{"", "\n", "# nothing yet\n", "---\n", "--- {}\n", "{}", "~", "\ufeff---\r\n", "c: []"} {
		d, err := definitionsIn(t, content)
		if err != nil || len(d.Keys) != 0 || len(d.Warnings) != 0 {
			t.Errorf("%q: got %+v, %v", content, d, err)
		}
	}
}

func TestLoadDefinitions_AliasesStandForWhatTheyName(t *testing.T) {
	d, err := definitionsIn(t, `
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
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range d.Keys {
		got = append(got, fmt.Sprintf("%s%v", k, k.Conditions))
	}
	want := []string{
		"a.project_id -> projects[]", "b.project_id -> projects[]", "c.x -> projects[{type X}]", "d.x -> projects[{type X}]",
		"e.y -> projects[{type X}]",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoadDefinitions_IdenticalEntryIsIgnoredWithAWarning(t *testing.T) {
	d, err := definitionsIn(t, `
c:
  - {table: p, column: p_id, on_delete: async_delete}
  - {table: p, column: p_id, on_delete: async_nullify}
  - {on_delete: async_delete, table: p, column: "p_id", worker_class: Other}
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: a, value: b}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Keys) != 3 {
		t.Errorf("got %d definitions, want 3: only the third entry is a repetition", len(d.Keys))
	}
	if len(d.Warnings) != 1 || d.Warnings[0].Code != "duplicate_definition" || d.Warnings[0].Object != "c.p_id -> p" ||
		!strings.Contains(d.Warnings[0].Advice, "c[2]") {
		t.Errorf("got %+v, want one warning that names c[2]", d.Warnings)
	}
}

func TestLoadDefinitions_ByParentKeepsFileOrder(t *testing.T) {
	d, err := definitionsIn(t, `
z:
  - {table: p, column: a, on_delete: async_delete}
  - {table: q, column: b, on_delete: async_delete}
a:
  - {table: p, column: c, on_delete: async_delete}
`)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for parent, keys := range d.ByParent() {
		for _, k := range keys {
			got[parent] += k.Table + "." + k.Columns[0] + " "
		}
	}
	if want := map[string]string{"p": "z.a a.c ", "q": "z.b "}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The size and form of GitLab's own file: about 240 child tables, 330 entries, 45 parents, one of them with 153.
func TestLoadDefinitions_TakesAFileOfGitLabsSize(t *testing.T) {
	var file strings.Builder
	file.WriteString("---\n")
	entries := 0
	for child := range 240 {
		fmt.Fprintf(&file, "child_%03d:\n", child)
		for i := range 1 + child%8/5 {
			parent := "projects"
			if entries%2 == 1 {
				parent = fmt.Sprintf("parent_%02d", entries/2%44)
			}
			fmt.Fprintf(&file, "  - table: %s\n    column: %s_%d_id\n    on_delete: %s  \n", parent, parent, i,
				[]string{"async_delete", "async_nullify"}[entries%3/2])
			entries++
		}
	}
	d, err := definitionsIn(t, file.String())
	if err != nil {
		t.Fatal(err)
	}
	parents := d.ByParent()
	if len(d.Keys) != entries || entries < 330 || len(parents) != 45 || len(parents["projects"]) < 153 || len(d.Warnings) != 0 {
		t.Errorf("got %d definitions of %d, %d parents, %d of projects, %v", len(d.Keys), entries, len(parents), len(parents["projects"]), d.Warnings)
	}
}
