package admin_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }
