// Caretaker is a maintenance service for a GitLab-shaped PostgreSQL estate.
package main

//go:generate go run ./tools/configdoc

import (
	"os"

	"github.com/caretaker-go/caretaker/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
