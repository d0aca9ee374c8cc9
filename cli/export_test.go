package cli

import (
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Encryption is what doctor reports of the TLS of a connection: status, problem and remedy.
func Encryption(f repo.ServerFacts, key string) (status, problem, remedy string) {
	var all findings
	all.encryption(f, key)
	for _, found := range all {
		return found.Status, found.Problem, found.Remedy
	}
	return statusOK, "", ""
}

// Stalled is whether the watchdog is no longer pinged so long after the last check of main.
func Stalled(after time.Duration) bool {
	var i instance
	checked := time.Now().Add(-after)
	i.mainChecked.Store(&checked)
	return i.stalled()
}
