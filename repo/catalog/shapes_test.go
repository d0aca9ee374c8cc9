package catalog_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/catalog"
)

func TestUnique_NeedsExactlyTheColumnsOfAnIndexThatNeverAllowsEqualValues(t *testing.T) {
	indexes := []catalog.Index{
		{Columns: []string{"id"}, Unique: true},
		{Columns: []string{"a", "b"}, Unique: true},
		{Columns: []string{"plain"}},
		{Columns: []string{"partial"}, Unique: true, Predicate: "(id > 1)"},
		{Columns: []string{"late"}, Unique: true, Deferrable: true},
		{Columns: []string{"", "b"}, Unique: true},
	}
	for _, columns := range [][]string{{"id"}, {"a", "b"}, {"b", "a"}} {
		assert.That(t, catalog.Unique(indexes, columns), "%v are not unique", columns)
	}
	for _, columns := range [][]string{
		{"a"}, {"b"}, {"plain"}, {"partial"}, {"late"}, {"id", "a"}, {"a", "b", "id"}, {"b", "c"},
	} {
		assert.That(t, !catalog.Unique(indexes, columns), "%v are unique", columns)
	}
	assert.That(t, !catalog.Unique(nil, []string{"id"}), "a column without an index is unique")
}

func TestUniqueKeys_CountsEachKeyOnceAndNoPartialOne(t *testing.T) {
	indexes := []catalog.Index{
		{Columns: []string{"id"}, Unique: true},
		{Columns: []string{"id"}, Unique: true},
		{Columns: []string{"plain"}},
		{Columns: []string{""}, Unique: true},
		{Columns: []string{"partial"}, Unique: true, Predicate: "(id > 1)"},
	}
	assert.Equal(t, catalog.UniqueKeys(indexes), 1)
	indexes = append(indexes, catalog.Index{Columns: []string{"late"}, Unique: true, Deferrable: true})
	assert.Equal(t, catalog.UniqueKeys(indexes), 2)
}
