package format_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/format"
)

func TestNearest_ReturnsTheNameOfATypingError(t *testing.T) {
	candidates := []string{"customer_id", "owner_id", "id", "c"}
	for name, want := range map[string]string{
		"custmer_id": "customer_id", "ownr_d": "owner_id", "ids": "id", "customer": "", "x": "", "xy": "",
		"di": "", "xyz": "", "idd": "id", "cusotmer_id": "customer_id",
	} {
		assert.Equal(t, format.Nearest(name, candidates), want, name)
	}
	assert.Equal(t, format.DidYouMean("nix", []string{"ci", "main", "sec"}), "")
	assert.Equal(t, format.DidYouMean("mian", []string{"ci", "main"}), " (did you mean main?)")
	assert.Equal(t, format.DidYouMean("customer", candidates), " (did you mean customer_id?)")
}
