package web

import (
	"fmt"
	"strings"

	"github.com/caretaker-go/caretaker/service"
)

// verdict is the state of the whole in a few words.
type verdict struct {
	// Short is for the title, Long for the head of the page; Tone is its colour.
	Short, Long, Tone string
}

// tone of a condition: the name of a style. The words say the same, for those who see no colours.
func tone(c service.Condition) string {
	switch c {
	case service.ConditionFailing:
		return "bad"
	case service.ConditionPaused, service.ConditionThrottled, service.ConditionLeaseHeldElsewhere:
		return "warn"
	case service.ConditionRunning:
		return "busy"
	case service.ConditionNotConfigured, service.ConditionSchedulerOff:
		return "off"
	case service.ConditionIdle:
	}
	return "good"
}

// words of a condition: LEASE_HELD_ELSEWHERE is lease held elsewhere.
func words(c service.Condition) string {
	return strings.ToLower(strings.ReplaceAll(string(c), "_", " "))
}

// judge finds the worst: what is down or failing first, then what does not work by somebody's will, then work.
func judge(workers []service.WorkerStatus, down bool) verdict {
	if down {
		return verdict{"main is down", "The database main does not answer. What is shown below is what this server knows by itself; " +
			"lists are those of before.", "bad"}
	}
	for _, c := range []service.Condition{
		service.ConditionFailing, service.ConditionPaused, service.ConditionThrottled, service.ConditionLeaseHeldElsewhere,
		service.ConditionRunning, service.ConditionNotConfigured, service.ConditionSchedulerOff,
	} {
		var names []string
		for _, w := range workers {
			if w.Condition == c {
				names = append(names, w.Worker)
			}
		}
		if len(names) > 0 {
			return verdict{fmt.Sprintf("%d %s", len(names), words(c)), strings.Join(names, ", ") + ": " + words(c) + ".", tone(c)}
		}
	}
	if len(workers) == 0 {
		return verdict{"nothing used", "No worker is enabled and configured.", "off"}
	}
	return verdict{"in order", "All workers are in order and wait for their next run.", "good"}
}

// withDead adds what has been given up, or waits for somebody to decide, to whatever is less bad than a failure. Some of
// it may be told twice: the jobs of a worker are dead for its backlog too.
func (v verdict) withDead(workers []service.WorkerStatus, jobs []service.JobCount) verdict {
	if v.Tone == "bad" {
		return v
	}
	var parts []string
	rows, dead := int64(0), int64(0)
	for _, c := range jobs {
		if c.State == "discarded" {
			dead += c.Jobs
			parts = append(parts, number(c.Jobs)+" × "+c.Kind)
		}
	}
	for _, w := range workers {
		if n := w.Backlog.Dead; n > 0 {
			rows += n
			parts = append(parts, number(n)+" of "+w.Worker)
		}
	}
	switch {
	case dead == 1:
		v.Short += ", 1 job given up"
	case dead > 1:
		v.Short += ", " + number(dead) + " jobs given up"
	case rows > 0:
		v.Short += ", " + number(rows) + " for somebody to decide"
	default:
		return v
	}
	v.Long += " Given up, or for somebody to decide: " + strings.Join(parts, ", ") + "."
	if v.Tone == "good" {
		v.Tone = "warn"
	}
	return v
}
