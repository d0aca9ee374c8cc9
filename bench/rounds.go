package main

import (
	"cmp"
	"fmt"
	"slices"
)

// calm is the share of the machine that other programs may have used in a round that counts.
const calm = 0.1

// round is what one round measured, all sides in turn.
type round[T any] struct {
	number int
	result T
	// others is the share of the machine that other programs used, at the side that they disturbed most.
	others float64
}

// rounds measures until it has as many undisturbed rounds as wanted, and l.tries times as many at most. It returns the
// least disturbed ones, in the order of time, and a sentence about them.
func rounds[T any](l *lab, wanted int, measure func(round int) (T, float64, error)) ([]T, string, error) {
	var all []round[T]
	limit, undisturbed := l.tries*wanted, 0
	for len(all) < limit && undisturbed < wanted {
		result, others, err := measure(len(all))
		if err != nil {
			return nil, "", err
		}
		l.say("  round %d: other programs used %.0f %% of the machine", len(all)+1, 100*others)
		if others <= calm {
			undisturbed++
		}
		all = append(all, round[T]{len(all), result, others})
	}
	measured := len(all)
	slices.SortStableFunc(all, func(a, b round[T]) int { return cmp.Compare(a.others, b.others) })
	all = all[:wanted]
	note := fmt.Sprintf("Of %d rounds the %d least disturbed count; other programs used at most %.0f %% of the machine in them.",
		measured, wanted, 100*all[wanted-1].others)
	if undisturbed < wanted {
		note += " That is too much: what uses several cores suffers most, so measure again."
	}
	slices.SortFunc(all, func(a, b round[T]) int { return cmp.Compare(a.number, b.number) })
	out := make([]T, wanted)
	for i, r := range all {
		out[i] = r.result
	}
	return out, note, nil
}
