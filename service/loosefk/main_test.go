package loosefk_test

import (
	"flag"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	// Properties are tried on a few schemas, unless -rapid.checks says otherwise.
	_ = flag.Set("rapid.checks", "5")
	servicetest.Main(m)
}
