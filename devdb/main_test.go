package devdb

import (
	"os"
	"testing"
)

// databases serves all tests of the package.
var databases Tests

func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }
