package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
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
		return verdict{"main is down", "The database main does not answer. Lists show the last known state.", "bad"}
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
		return verdict{"no worker enabled", "No worker is enabled and configured.", "off"}
	}
	return verdict{"healthy", "All workers are healthy.", "good"}
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

// withDead adds to a verdict that is no failure: items that require a decision, failed jobs, and
// parents that are not tracked. A worker's backlog may include its failed jobs.
func (v verdict) withDead(workers []status.Worker, jobs []job.Count) verdict {
	if v.Tone == "bad" {
		return v
	}
	var items, failed tally
	untracked := 0
	for _, c := range jobs {
		if c.State == "discarded" {
			failed.add(c.Kind, c.Jobs)
		}
	}
	for _, w := range workers {
		untracked += w.Backlog.Untracked
		items.add(w.Worker, w.Backlog.Dead)
	}
	// Only the most important number is in the short text. The long text has all.
	switch {
	case failed.sum > 0:
		v.Short += ", " + format.Pluralize(failed.sum, "failed job")
	case items.sum > 0:
		v.Short += ", " + format.Number(items.sum) + " need attention"
	case untracked == 0:
		return v
	}
	v.Long += items.text("item", " needs attention", " need attention") +
		failed.text("job", " failed permanently", " failed permanently")
	if untracked > 0 {
		v.Short += ", " + format.Number(untracked) + " not tracked"
		v.Long += " " + format.Pluralize(untracked, "parent") + " not tracked, so deletions are not recorded."
	}
	if v.Tone == "good" {
		v.Tone = "warn"
	}
	return v
}

// tally is a sum of numbers with names.
type tally struct {
	sum   int64
	parts []string
}

func (t *tally) add(name string, n int64) {
	if n > 0 {
		t.sum += n
		t.parts = append(t.parts, name+" ("+format.Number(n)+")")
	}
}

// text returns the tally as a sentence, "" for none.
func (t *tally) text(noun, one, several string) string {
	if t.sum == 0 {
		return ""
	}
	if t.sum > 1 {
		one = several
	}
	return " " + format.Pluralize(t.sum, noun) + one + ": " + strings.Join(t.parts, ", ") + "."
}
