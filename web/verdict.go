package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/status"
)

// verdict is a short description of the overall state.
type verdict struct {
	// Short is for the title, Long for the head of the page, Tone for the color.
	Short, Long, Tone string
}

// conditionText returns a condition as text: lease held elsewhere for LEASE_HELD_ELSEWHERE.
func conditionText(c status.Condition) string {
	return strings.ToLower(strings.ReplaceAll(string(c), "_", " "))
}

// judge summarizes the workers by the worst condition. Failing workers come first, then blocked
// ones, then running ones.
func judge(workers []status.Worker, down bool) verdict {
	if down {
		return verdict{"main is down", "The database main does not answer. This page shows what the " +
			"server itself knows, and older lists.", "bad"}
	}
	if common := outages(workers); len(common) > 0 {
		parts := make([]string, len(common))
		names := make([]string, len(common))
		for i, o := range common {
			names[i] = o.Database
			parts[i] = o.Message + ". Failing: " + strings.Join(o.Workers, ", ") + "."
		}
		return verdict{strings.Join(names, ", ") + " unreachable", strings.Join(parts, " "), "bad"}
	}
	for _, c := range []status.Condition{
		status.ConditionFailing, status.ConditionPaused, status.ConditionThrottled,
		status.ConditionLeaseHeldElsewhere, status.ConditionRunning,
		status.ConditionNotConfigured, status.ConditionSchedulerOff,
	} {
		var names []string
		for _, w := range workers {
			if w.Condition == c {
				names = append(names, w.Worker)
			}
		}
		if len(names) > 0 {
			return verdict{
				Short: fmt.Sprintf("%d %s", len(names), conditionText(c)),
				Long:  strings.Join(names, ", ") + ": " + conditionText(c) + ".",
				Tone:  fault.Tone(conditionText(c)),
			}
		}
	}
	if len(workers) == 0 {
		return verdict{"nothing used", "No worker is enabled and configured.", "off"}
	}
	return verdict{"in order", "All workers are healthy.", "good"}
}

// outage is a database that keeps several workers from running.
type outage struct {
	Database, Message string
	Workers           []string
}

// outages returns the outages that several workers share, to report each only once.
func outages(workers []status.Worker) (common []outage) {
	for _, w := range workers {
		f := w.Failing
		if f == nil || f.Class != status.FailureUnreachable || f.Database == "" {
			continue
		}
		i := slices.IndexFunc(common, func(o outage) bool { return o.Database == f.Database })
		if i < 0 {
			i = len(common)
			common = append(common, outage{Database: f.Database, Message: f.Message})
		}
		common[i].Workers = append(common[i].Workers, w.Worker)
	}
	return slices.DeleteFunc(common, func(o outage) bool { return len(o.Workers) < 2 })
}

// withDead adds dead items, items that require a decision, and unrecorded items to a verdict that
// is no failure. It may count some twice, because a worker's backlog includes its dead jobs.
func (v verdict) withDead(workers []status.Worker, jobs []job.Count) verdict {
	if v.Tone == "bad" {
		return v
	}
	var parts []string
	rows, dead, untracked := int64(0), int64(0), 0
	for _, c := range jobs {
		if c.State == "discarded" {
			dead += c.Jobs
			parts = append(parts, number(c.Jobs)+" × "+c.Kind)
		}
	}
	for _, w := range workers {
		untracked += w.Backlog.Untracked
		if n := w.Backlog.Dead; n > 0 {
			rows += n
			parts = append(parts, number(n)+" of "+w.Worker)
		}
	}
	// Only the most important number is in the short text. The long text has all.
	switch {
	case dead == 1:
		v.Short += ", 1 job given up"
	case dead > 1:
		v.Short += ", " + number(dead) + " jobs given up"
	case rows > 0:
		v.Short += ", " + number(rows) + " to be decided"
	case untracked == 0:
		return v
	}
	if len(parts) > 0 {
		v.Long += " Given up, or to be decided: " + strings.Join(parts, ", ") + "."
	}
	if untracked > 0 {
		v.Short += ", " + number(int64(untracked)) + " not tracked"
		v.Long += " Parents whose deletions are not recorded: " + number(int64(untracked)) + "."
	}
	if v.Tone == "good" {
		v.Tone = "warn"
	}
	return v
}
