// Caretaker is a maintenance service for PostgreSQL: loose foreign keys anywhere, users and groups of
// GitLab.
package main

//go:generate go run ./tools/configdoc

import (
	"os"

	"github.com/caretaker-go/caretaker/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
