package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRates_ForgetClientsThatHaveBeenQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Rates{}
		for i := range maxBuckets {
			assert.That(t, r.Bucket(fmt.Sprint(i), 1, 2).Allow(), "the first call of %d is refused", i)
		}
		for range 2 {
			r.Bucket("0", 1, 2).Allow()
		}
		assert.That(t, !r.Bucket("0", 1, 2).Allow(), "a call above the limit is allowed")
		time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
		assert.That(t, r.Bucket("new", 1, 2).Allow(), "the first call is refused")
		assert.Equal(t, strings.Join(slices.Sorted(maps.Keys(r.buckets)), " "), "0 new")
	})
}
