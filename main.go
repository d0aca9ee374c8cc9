// Caretaker is a maintenance service for a GitLab-shaped PostgreSQL estate.
package main

import (
	"context"
	"os"

	"github.com/caretaker-go/caretaker/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
