package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
		o.temporary = true
		if o.dir, err = os.MkdirTemp("", "caretaker-faults-"); err == nil {
			// The database server has another user, who must get there.
			err = os.Chmod(o.dir, 0o755) //nolint:gosec // it holds nothing secret
		}
	} else if o.dir, err = filepath.Abs(o.dir); err == nil {
		err = os.MkdirAll(o.dir, 0o755)
	}
	if err != nil {
		return err
	}
	if o.mutations || o.mutation != "" {
		return o.prove(ctx, out)
	}
	return o.campaign(ctx, out)
}

// campaign plays rounds until the time is over.
func (o options) campaign(ctx context.Context, out io.Writer) error {
	program, remove, err := o.build(ctx)
	if err != nil {
		return err
	}
	defer remove()
	t, began := newTally(), time.Now()
	found := 0
	for n := 0; (o.rounds == 0 || n < o.rounds) && (n == 0 || time.Since(began) < o.time); n++ {
		seed, at := o.seed+uint64(n), time.Now()
		violations, err := o.play(ctx, program, seed, t)
		if err != nil && ctx.Err() != nil {
			break // what was done is reported
		}
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		o.say("seed %d: %s, %d violations; %d freezes so far", seed, time.Since(at).Round(time.Second), len(violations), t.freezes)
		for _, v := range violations {
			found++
			fmt.Fprintf(out, "seed %d: %s\n\n", seed, v)
		}
		if len(violations) > 0 {
			fmt.Fprintf(out, "To repeat it: make faults FAULTS_ARGS=%q\nThe logs are in %s.\n\n", o.repeat(seed), o.dir)
		}
	}
	if ctx.Err() != nil && t.rounds == 0 {
		return fmt.Errorf("interrupted in the first round: nothing was found, and nothing proved; %s stays", o.dir)
	}
	if idle := t.idle(); t.rounds > 2 && len(idle) > 0 {
		found++
		fmt.Fprintf(out, "In the whole campaign there was no %s.\n\n", strings.Join(idle, ", no "))
	}
	t.report(out, o, time.Since(began), found)
	if found > 0 {
		return errFound
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted after %d rounds; what is left of the last one is in %s", t.rounds, o.dir)
	}
	return o.removeDir()
}

// build is followed by remove.
func (o options) build(ctx context.Context, changes ...change) (program string, remove func(), err error) {
	o.say("building caretaker with a clock that can be wrong")
	dir, err := os.MkdirTemp(o.dir, "build-")
	if err != nil {
		return "", nil, err
	}
	program, err = build(ctx, dir, changes...)
	remove = func() { _ = os.RemoveAll(dir) }
	if err != nil {
		remove()
	}
	if ctx.Err() != nil {
		err = errors.Join(errors.New("interrupted while caretaker was built"), o.removeDir())
	}
	return program, remove, err
}

// removeDir removes a temporary folder.
func (o options) removeDir() error {
	if !o.temporary {
		return nil
	}
	return os.RemoveAll(o.dir)
}

// repeat are the options that repeat the round of a seed.
func (o options) repeat(seed uint64) string {
	args := []string{fmt.Sprintf("-seed %d -rounds 1 -size %d -replicas %d -disturb %s -timeout %s", seed, o.size, o.replicas, o.disturb, o.timeout)}
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

// rules are what triggers check: a campaign in which one has checked nothing proves nothing. A
// crash or failover of PostgreSQL sets its counts back.
func rules() []string {
	return []string{"begin of a job", "cursor saved", "end of a job", "lease", "record done", "record of a living parent", "write of a job", "write of a worker"}
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
	fmt.Fprintf(out, "| recovery time, at most | %s |\n", t.drained.Round(time.Second))
	fmt.Fprintln(out, "\n| fault | how often |\n|---|---:|")
	for _, name := range names() {
		row(name, t.faults[name])
	}
	for _, m := range t.missing {
		fmt.Fprintf(out, "\nNot caused here: %s.\n", m)
	}
	if never := t.never(); len(never) > 0 && len(o.only) == 0 {
		fmt.Fprintf(out, "\nDid not happen, so nothing is said about: %s. A longer campaign has them (-time 30m), or one of them alone (-only).\n",
			strings.Join(never, ", "))
	}
}

// never are the faults that did not happen.
func (t *tally) never() []string {
	return slices.DeleteFunc(names(), func(name string) bool { return t.faults[name] > 0 })
}
