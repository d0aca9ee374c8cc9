package devdb

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// databases serves all tests of the package, on a cluster of its own.
var databases = Tests{Settings: map[string]string{"cluster_name": "devdb"}}

func TestMain(m *testing.M) {
	if os.Getenv(helperDir) != "" {
		os.Exit(helper())
	}
	code := databases.Run(m)
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}
