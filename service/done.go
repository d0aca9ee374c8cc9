package service

import (
	"github.com/caretaker-go/caretaker/service/adjournedgroup"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
)

// Done is how many of the things that its worker's backlog has as due a run has dealt with, in
// whatever way, by its counts; known is false for a worker whose counts do not say.
func Done(worker string, counts map[string]int64) (n int64, known bool) {
	names, known := map[string][]string{
		loosefk.Name: {
			"processed_records", "incremented_records", "rescheduled_records", "dead_records",
		},
		inactivetoken.Name:   {"examined_users"},
		ghostuser.Name:       {"migrated_users", "deferred_users", "failed_users"},
		adjournedgroup.Name:  {"scheduled_jobs", "restored_groups", "held_groups", "failed_groups"},
		placeholderuser.Name: {"scheduled_jobs", "exhausted_users"},
	}[worker]
	for _, name := range names {
		n += counts[name]
	}
	return n, known
}
