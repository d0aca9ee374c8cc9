package devdb

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// databases serves tests of what is in databases, owned those of clusters and of their templates.
var databases, owned = Tests{}, Tests{Settings: map[string]string{"cluster_name": "devdb"}}

func TestMain(m *testing.M) {
	if os.Getenv(helperDir) != "" {
		os.Exit(helper())
	}
	code := max(databases.Run(m), owned.Run(suite(func() int { return 0 })))
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}
