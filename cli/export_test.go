package cli

import (
	"github.com/caretaker-go/caretaker/repo"
)

// Encryption is what doctor says of the TLS of a connection: status, problem and remedy.
func Encryption(f repo.ServerFacts, key string) (status, problem, remedy string) {
	for _, found := range encryption(f, key) {
		return found.Status, found.Problem, found.Remedy
	}
	return statusOK, "", ""
}
