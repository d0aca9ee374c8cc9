package format_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/format"
)

func TestArgument_QuotesWhatAShellInterprets(t *testing.T) {
	for text, want := range map[string]string{
		"": "''", "sales.orders": "sales.orders", "a,b": "a,b", `"A"`: `'"A"'`, "it's": `'it'\''s'`,
		"a b": "'a b'", "a;b": "'a;b'", "x$(id)x": "'x$(id)x'", "grün": "'grün'", "a\nb": "'a\nb'",
	} {
		assert.Equal(t, format.Argument(text), want, text)
	}
}

func TestCountName_IsSingularForOne(t *testing.T) {
	assert.Equal(t, format.CountName(1, "deleted_rows"), "deleted row")
	assert.Equal(t, format.CountName(2, "rows"), "rows")
	assert.Equal(t, format.CountName(0, "held_groups"), "held groups")
}
