package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Summary is the health of all workers.
type Summary struct {
	// Short is for a title, Long is whole sentences. Tone is good, busy, warn, bad or off.
	Short, Long, Tone string
}

// Text returns the condition as text: lease held elsewhere for LEASE_HELD_ELSEWHERE.
func (c Condition) Text() string {
	return strings.ToLower(strings.ReplaceAll(string(c), "_", " "))
}

// Summarize returns the health of workers with their counts of jobs. down is why main cannot be
// read, nil if it can.
func Summarize(workers []Worker, jobs []job.Count, down error) Summary {
	if down != nil || len(Outages(workers)) > 0 {
		return worst(workers, down)
	}
	return worst(workers, nil).withDead(workers, jobs)
}

// worst summarizes the workers by the worst condition. Failing workers come first, then blocked
// ones, then running ones.
func worst(workers []Worker, down error) Summary {
	const last = " Lists show the last known state."
	switch {
	case errors.Is(down, fault.ErrUnreachable), errors.Is(down, context.DeadlineExceeded):
		return Summary{"main is down", "The database main does not answer." + last, "bad"}
	case down != nil:
		return Summary{"main cannot be read", "The database main cannot be read: " + fault.PublicText(down) + "." + last, "bad"}
	}
	if common := Outages(workers); len(common) > 0 {
		parts := make([]string, len(common))
		names := make([]string, len(common))
		for i, o := range common {
			names[i] = o.Database
			parts[i] = o.Message + ". Failing: " + strings.Join(o.Workers, ", ") + "."
		}
		return Summary{strings.Join(names, ", ") + " unreachable", strings.Join(parts, " "), "bad"}
	}
	for _, c := range []Condition{
		ConditionFailing, ConditionPaused, ConditionThrottled, ConditionLeaseHeldElsewhere, ConditionRunning,
		ConditionNotConfigured, ConditionDisabled, ConditionSchedulerOff,
	} {
		var names []string
		for _, w := range workers {
			if w.Condition == c {
				names = append(names, w.Worker)
			}
		}
		if len(names) > 0 {
			return Summary{
				Short: fmt.Sprintf("%d %s", len(names), c.Text()),
				Long:  strings.Join(names, ", ") + ": " + c.Text() + ".",
				Tone:  fault.Tone(c.Text()),
			}
		}
	}
	if len(workers) == 0 {
		return Summary{"no worker enabled", "No worker is enabled and configured.", "off"}
	}
	return Summary{"healthy", "All workers are healthy.", "good"}
}

// Outage is a database that keeps several workers from running.
type Outage struct {
	Database, Message string
	Workers           []string
}

// Outages returns the outages that several workers share, to report each only once.
func Outages(workers []Worker) (common []Outage) {
	for _, w := range workers {
		f := w.Failing
		if f == nil || f.Class != FailureUnreachable || f.Database == "" {
			continue
		}
		i := slices.IndexFunc(common, func(o Outage) bool { return o.Database == f.Database })
		if i < 0 {
			i = len(common)
			common = append(common, Outage{Database: f.Database, Message: f.Message})
		}
		common[i].Workers = append(common[i].Workers, w.Worker)
	}
	return slices.DeleteFunc(common, func(o Outage) bool { return len(o.Workers) < 2 })
}

// withDead adds to a summary that is no outage: items that require a decision, failed jobs, and
// parents that are not tracked. A worker's backlog may include its failed jobs.
func (v Summary) withDead(workers []Worker, jobs []job.Count) Summary {
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
