package orphanaudit_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	// Records are written when all older transactions of the cluster have ended: on a cluster of their own these tests do
	// not wait for those of other packages.
	servicetest.Databases.Settings = map[string]string{"synchronous_commit": "off"}
	servicetest.Main(m)
}
