package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// errFound is the error of a campaign in which there were violations.
var errFound = errors.New("something is wrong: see above")

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "caretaker-faults-"); err != nil {
			return err
		}
		o.temporary = true
		// The database server has another user, who must get there.
		err = os.Chmod(o.dir, 0o755) //nolint:gosec // it holds nothing secret
	} else {
		err = os.MkdirAll(o.dir, 0o755)
	}
	if err != nil {
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
		if err != nil && ctx.Err() != nil {
			break // what was done is reported
		}
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		fmt.Fprintf(progress, "seed %d: %s, %d violations, %d freezes so far\n", seed, time.Since(at).Round(time.Second), len(violations), t.freezes)
		for _, v := range violations {
			found++
			fmt.Fprintf(out, "seed %d: %s\n\n", seed, v)
		}
		if len(violations) > 0 {
			fmt.Fprintf(out, "To repeat it: make faults FAULTS_ARGS=%q\nThe logs are in %s.\n\n", o.repeat(seed), o.dir)
		}
	}
	if idle := t.idle(); t.rounds > 2 && len(idle) > 0 {
		found++
		fmt.Fprintf(out, "In the whole campaign there was no %s.\n\n", strings.Join(idle, ", no "))
	}
	t.report(out, o, time.Since(began), found)
	if found > 0 {
		return errFound
	}
	if !o.temporary {
		return os.Remove(program)
	}
	return os.RemoveAll(o.dir)
}

// repeat are the options that repeat the round of a seed.
func (o options) repeat(seed uint64) string {
	args := []string{fmt.Sprintf("-seed %d -rounds 1 -size %d -replicas %d -disturb %s -patience %s", seed, o.size, o.replicas, o.disturb, o.patience)}
	for _, name := range o.only {
		args = append(args, "-only '"+name+"'")
	}
	return strings.Join(args, " ")
}

// idle is what a campaign must have seen, and has not: then it proves nothing.
func (t *tally) idle() (all []string) {
	for what, n := range map[string]int{
		"freeze": t.freezes, "row that was changed while faults happened": t.disturbed, "run": t.runs, "job": t.jobs, "fire": t.fires,
	} {
		if n == 0 {
			all = append(all, what)
		}
	}
	for _, rule := range rules() {
		if t.watched[rule] == 0 {
			all = append(all, rule)
		}
	}
	slices.Sort(all)
	return all
}

// rules are what triggers look at: a campaign in which one has looked at nothing proves nothing. A crash
// or failover of PostgreSQL sets its counts back.
func rules() []string {
	return []string{"begin of a job", "cursor saved", "end of a job", "lease", "record done", "write of a job", "write of a worker"}
}

// report prints what was done, and what was found.
func (t *tally) report(out io.Writer, o options, took time.Duration, found int) {
	fmt.Fprintf(out, "Seeds %d to %d, estates of size %d, %d replicas, %s.\n\n", o.seed, o.seed+uint64(t.rounds)-1, o.size, o.replicas, took.Round(time.Second))
	fmt.Fprintln(out, "| | |\n|---|---:|")
	row := func(what string, n int) { fmt.Fprintf(out, "| %s | %d |\n", what, n) }
	row("violations", found)
	row("rounds", t.rounds)
	row("a replica frozen until a lease that it held had expired", t.freezes)
	row("rows of the application that were changed", t.rows)
	row("of them while faults happened", t.disturbed)
	row("runs", t.runs)
	row("jobs", t.jobs)
	row("fires", t.fires)
	row("fires that nobody ran within a minute", t.missed)
	for _, rule := range rules() {
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
