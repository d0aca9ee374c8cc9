package admin_test

import (
	"slices"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
)

func TestForeignKeysOf_NamesTheTablesOfTheDefinitions(t *testing.T) {
	table := func(name string) catalog.Table { return catalog.Table{Schema: "public", Name: name} }
	parents := []catalog.Table{table("parents"), table("parents_1")}
	children := []catalog.Table{table("children"), table("children_1")}
	for _, c := range []struct {
		child, parent string
		unenforced    bool
		want          []string
	}{
		{"children", "parents", false, []string{"public.children", "public.parents"}},
		{"children_1", "parents_1", false, []string{"public.children", "public.parents"}},
		{"others", "parents", false, []string{"", "public.parents"}},
		{"parents", "parents", false, []string{"public.parents", "public.parents"}},
		{"children", "others", false, nil},
		{"children", "parents", true, nil},
	} {
		key := catalog.ForeignKey{Name: "k", OnDelete: "a", Enforced: !c.unenforced}
		key.Child, key.Parent = table(c.child), table(c.parent)
		var got []string
		for _, f := range admin.ForeignKeysOf([]catalog.ForeignKey{key}, parents, children) {
			got = append(got, f.From, f.To)
			assert.Equal(t, f.String(), "k on public."+c.child)
		}
		assert.That(t, slices.Equal(got, c.want),
			"%s to %s: %q, want %q", c.child, c.parent, got, c.want)
	}
}

func TestForeignKey_BlocksUnlessTheDatabaseChangesTheRows(t *testing.T) {
	for action, blocks := range map[string]bool{"a": true, "r": true, "c": false, "n": false, "d": false} {
		key := admin.ForeignKey{ForeignKey: catalog.ForeignKey{OnDelete: action}}
		assert.That(t, key.Blocks() == blocks, "%s: %v", action, key.Blocks())
	}
}
