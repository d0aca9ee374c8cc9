package loosefk

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestLoadDefinitions_ThreeMistakesAreAllListed(t *testing.T) {
	got := problemsIn(t, `
c:
  - {table: p, column: p_id, on_delete: async_delete, only_if: x}
  - {table: p, column: p_id, on_delete: update_column_to, target_column: state}
d:
  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 0}
`)
	want := []string{
		`d.yml: c[0].only_if: is not a key of this mapping: allowed are table, column, key, on_delete, target_column, ` +
			`target_value, conditions, delete_limit, worker_class`,
		`d.yml: c[1].target_value: is required for on_delete: update_column_to`,
		`d.yml: d[0].delete_limit: is the integer "0": write an integer of at least 1`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestLoadDefinitions_UnknownActionNamesTheAllowedOnes(t *testing.T) {
	got := problemsIn(t, "c:\n  - {table: p, column: p_id, on_delete: async_drop}")
	want := []string{`d.yml: c[0].on_delete: is the string "async_drop": allowed are async_delete, async_nullify, update_column_to`}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoadDefinitions_UnreadableFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "absent.yml")
	_, err := LoadDefinitions(file)
	var wrong *DefinitionsError
	if !errors.As(err, &wrong) || err.Error() != file+": cannot be read: no such file or directory: correct workers.loose_foreign_keys_cleanup.definitions" {
		t.Errorf("got %v", err)
	}
	if _, err = LoadDefinitions(t.TempDir()); err == nil {
		t.Error("a folder was read as a file")
	}
}

// malformed is a file and what has to be said of it.
type malformed struct{ content, place, reason string }

const (
	goodEntry   = "table: p, column: p_id, on_delete: async_delete"
	updateEntry = "table: p, column: p_id, on_delete: update_column_to"
)

func wantMistakes(t *testing.T, cases []malformed) {
	t.Helper()
	for _, c := range cases {
		got := problemsIn(t, c.content)
		if want := "d.yml: " + c.place; !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], c.reason) {
			t.Errorf("%s\ngot  %q\nwant %q and %q", c.content, got, want, c.reason)
		}
		if strings.Count(strings.Join(got, "\n"), "d.yml") != len(got) || len(got) > 3 {
			t.Errorf("%s: every problem is named once: %q", c.content, got)
		}
	}
}

func TestLoadDefinitions_MistakesOfTheFileAreFatal(t *testing.T) {
	long := strings.Repeat("ä", 32)
	wantMistakes(t, []malformed{
		{"- a\n- b", "", "line 1 is a list: write a mapping"},
		{"just words", "", `line 1 is the string "just words": write a mapping`},
		{"c: [", "", "is not YAML: line 1: did not find expected node content"},
		{"c: \"\xff\"", "", "is not YAML"},
		{"c: *nowhere", "", "is not YAML: unknown anchor 'nowhere' referenced"},
		{"c: []\n---\nd: []", "", "a second document"},
		{"c: []\n---\nd: [", "", "is not YAML"},
		{"c: []\nd: []\nc: []", "c: ", "is there twice (line 3)"},
		{"c: &c [*c]", "c[0]: ", "is a list"},
		{"123: []", "123: ", `is the integer "123": a table's name must be a string, put it in quotes`},
		{"true: []", "true: ", `is the boolean "true"`},
		{"~: []", "~: ", "is null"},
		{"[a]: []", "line 1: ", "is a list"},
		{"'': []", "line 1: ", "a table's name must not be empty"},
		{long + ": []", long + ": ", "has 64 bytes"},
		{"\"a\\0b\": []", "a\x00b: ", "has characters"},
		{"c: &c []\n<<: {d: []}", "<<: ", "merge keys are not supported"},
		{"c:", "c: ", "is null: write a list of entries"},
		{"c: {" + goodEntry + "}", "c: ", "is a mapping: write a list of entries"},
		{"c: p", "c: ", `is the string "p"`},
		{"c: [p]", "c[0]: ", `is the string "p": write a mapping`},
		{"c: [~]", "c[0]: ", "is null: write a mapping"},
	})
}

func TestLoadDefinitions_MistakesOfAnEntryAreFatal(t *testing.T) {
	long := strings.Repeat("ä", 32)
	wantMistakes(t, []malformed{
		{"c: [{}]", "c[0].table: ", "is required"},
		{"c: [{table: p, on_delete: async_delete}]", "c[0].column: ", "is required"},
		{"c: [{table: p, column: p_id}]", "c[0].on_delete: ", "is required"},
		{"c: [{table: '', column: p_id, on_delete: async_delete}]", "c[0].table: ", "must not be empty"},
		{"c: [{table: , column: p_id, on_delete: async_delete}]", "c[0].table: ", "is null"},
		{"c: [{table: 5, column: p_id, on_delete: async_delete}]", "c[0].table: ", `is the integer "5"`},
		{"c: [{table: " + long + ", column: p_id, on_delete: async_delete}]", "c[0].table: ", "has 64 bytes"},
		{"c: [{table: p, column: [a], on_delete: async_delete}]", "c[0].column: ", "is a list"},
		{"c: [{table: p, column: p_id, on_delete: ':async_delete'}]", "c[0].on_delete: ", `is the string ":async_delete"`},
		{"c: [{table: p, column: p_id, on_delete: ~}]", "c[0].on_delete: ", "is null"},
		{"c: [{" + goodEntry + ", table: q}]", "c[0].table: ", "is there twice"},
		{"c: [{" + goodEntry + ", Table: q}]", "c[0].Table: ", "is not a key"},
		{"c: [{" + goodEntry + ", 1: q}]", "c[0].1: ", "is not a key"},
		{"c: [{" + goodEntry + ", <<: {delete_limit: 1}}]", "c[0].<<: ", "merge keys are not supported"},
		{"c: [{" + goodEntry + ", target_column: x}]", "c[0].target_column: ", "belongs to on_delete: update_column_to only"},
		{"c: [{" + goodEntry + ", target_value: 1}]", "c[0].target_value: ", "belongs to on_delete: update_column_to only"},
		{"c: [{" + updateEntry + ", target_value: 1}]", "c[0].target_column: ", "is required"},
		{"c: [{" + updateEntry + ", target_column: ''}]", "c[0].target_column: ", "must not be empty"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: ~}]", "c[0].target_value: ", "is null"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 1.5}]", "c[0].target_value: ", `is the number "1.5"`},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 2020-01-01}]", "c[0].target_value: ", `is "2020-01-01"`},
		{"c: [{" + updateEntry + ", target_column: x, target_value: [1]}]", "c[0].target_value: ", "is a list"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: 99999999999999999999}]", "c[0].target_value: ", "is the number"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: !!int abc}]", "c[0].target_value: ", "is the integer"},
		{"c: [{" + updateEntry + ", target_column: x, target_value: \"\\0\"}]", "c[0].target_value: ", "is the string"},
	})
}

func TestLoadDefinitions_MistakesOfConditionsAndLimitsAreFatal(t *testing.T) {
	wantMistakes(t, []malformed{
		{"c: [{" + goodEntry + ", conditions: []}]", "c[0].conditions: ", "is an empty list"},
		{"c: [{" + goodEntry + ", conditions: ~}]", "c[0].conditions: ", "is null"},
		{"c: [{" + goodEntry + ", conditions: {column: a, value: b}}]", "c[0].conditions: ", "is a mapping"},
		{"c: [{" + goodEntry + ", conditions: [a]}]", "c[0].conditions[0]: ", `is the string "a"`},
		{"c: [{" + goodEntry + ", conditions: [{column: a}]}]", "c[0].conditions[0].value: ", "is required"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: 1}, {value: b}]}]", "c[0].conditions[1].column: ", "is required"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: ~}]}]", "c[0].conditions[0].value: ", "is null"},
		{"c: [{" + goodEntry + ", conditions: [{column: a, value: b, operator: '>'}]}]", "c[0].conditions[0].operator: ", "is not a key"},
		{"c: [{" + goodEntry + ", delete_limit: '5'}]", "c[0].delete_limit: ", `is the string "5"`},
		{"c: [{" + goodEntry + ", delete_limit: -1}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", delete_limit: 1.5}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", delete_limit: ~}]", "c[0].delete_limit: ", "is null"},
		{"c: [{" + goodEntry + ", delete_limit: 9223372036854775808}]", "c[0].delete_limit: ", "at least 1"},
		{"c: [{" + goodEntry + ", worker_class: ~}]", "c[0].worker_class: ", "is null"},
		{"c: [{" + goodEntry + ", worker_class: 5}]", "c[0].worker_class: ", `is the integer "5"`},
	})
}
