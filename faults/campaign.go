package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// errFound is of a campaign that found something.
var errFound = errors.New("something is wrong: see above")

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	if o.dir == "" {
		// Not in a folder of root's alone: the database server has another user.
		if o.dir, err = os.MkdirTemp("", "caretaker-faults-"); err != nil {
			return err
		}
	}
	if err := os.Chmod(o.dir, 0o755); err != nil { //nolint:gosec // it holds nothing secret
		return err
	}
	if o.mutations || o.mutation != "" {
		return prove(ctx, o, out, progress)
	}
	return o.campaign(ctx, out, progress)
}

// campaign plays rounds until the time is over.
func (o options) campaign(ctx context.Context, out, progress io.Writer) error {
	fmt.Fprintln(progress, "building caretaker with a clock that can be wrong ...")
	program, err := build(ctx, o.dir)
	if err != nil {
		return err
	}
	t, began := newTally(), time.Now()
	found := 0
	for n := 0; (o.rounds == 0 || n < o.rounds) && (n == 0 || time.Since(began) < o.time); n++ {
		seed, at := o.seed+uint64(n), time.Now()
		violations, err := play(ctx, o, program, seed, t)
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		fmt.Fprintf(progress, "seed %d: %s, %d violations, %d pauses so far\n", seed, time.Since(at).Round(time.Second), len(violations), t.pauses)
		for _, v := range violations {
			found++
			fmt.Fprintf(out, "seed %d: %s\n\n", seed, v)
		}
		if len(violations) > 0 {
			fmt.Fprintf(out, "To repeat it: go run ./faults -seed %d -rounds 1 -size %d -replicas %d -disturb %s\n"+
				"The logs are in %s.\n\n", seed, o.size, o.replicas, o.disturb, o.dir)
		}
	}
	t.report(out, o, time.Since(began), found)
	if found > 0 {
		return errFound
	}
	return os.RemoveAll(o.dir)
}

// report prints what was done, and what was found.
func (t *tally) report(out io.Writer, o options, took time.Duration, found int) {
	fmt.Fprintf(out, "Seeds %d to %d, estates of size %d, %d replicas, %s.\n\n", o.seed, o.seed+uint64(t.rounds)-1, o.size, o.replicas, took.Round(time.Second))
	fmt.Fprintln(out, "| | |\n|---|---:|")
	row := func(what string, n int) { fmt.Fprintf(out, "| %s | %d |\n", what, n) }
	row("violations", found)
	row("rounds", t.rounds)
	row("pauses of a replica until a lease of its own had expired", t.pauses)
	row("rows of the application that were changed", t.rows)
	row("runs", t.runs)
	row("jobs", t.jobs)
	row("fires", t.fires)
	row("fires that nobody ran within a minute", t.missed)
	for _, rule := range slices.Sorted(maps.Keys(t.watched)) {
		row("looked at: "+rule, t.watched[rule])
	}
	fmt.Fprintf(out, "| the work was done after the last fault within | %s |\n", t.drained.Round(time.Second))
	fmt.Fprintln(out, "\n| fault | how often |\n|---|---:|")
	for _, name := range names() {
		row(name, t.faults[name])
	}
	for _, m := range t.missing {
		fmt.Fprintf(out, "\nNot caused here: %s.\n", m)
	}
}
