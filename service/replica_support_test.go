package service_test

import (
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// candidateQueries are what the workers look for candidates with.
func candidateQueries() map[string]string {
	return map[string]string{
		servicetest.InactiveTokens: "AS idle", servicetest.PlaceholderUsers: "eligible_for_deletion ORDER BY id", servicetest.AdjournedGroups: "candidates AS MATERIALIZED",
		servicetest.GhostUsers: "q.consume_after <= $1",
	}
}
