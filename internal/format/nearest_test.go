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
	} {
		assert.Equal(t, format.Nearest(name, candidates), want, name)
	}
}
