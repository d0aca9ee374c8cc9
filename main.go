// Caretaker cascades deletes in PostgreSQL databases through loose foreign keys. In a GitLab
// database it also deletes users and groups.
package main

//go:generate go run ./tools/configdoc
//go:generate go run ./tools/clidoc

import (
	"os"

	"github.com/caretaker-go/caretaker/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
