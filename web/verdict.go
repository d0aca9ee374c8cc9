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
	return verdict{"in order", "All workers are in order and wait for their next run.", "good"}
}
