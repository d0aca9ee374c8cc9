package cli

import (
	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/repo"
)

// Root has all commands, as Run makes them.
func Root(streams Streams) *cobra.Command { return (&app{Streams: streams}).root() }

// Encryption is what doctor says of the TLS of a connection: status, problem and remedy.
func Encryption(f repo.ServerFacts, key string) (status, problem, remedy string) {
	for _, found := range encryption(f, key) {
		return found.Status, found.Problem, found.Remedy
	}
	return statusOK, "", ""
}
