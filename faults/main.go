// Faults lets everything go wrong that can, while several replicas of caretaker work on an estate made
// at random, and looks whether anything was lost, done twice, or written by one who had lost the lease.
//
// A campaign is a number of rounds, each with a seed of its own: from it come the estate, the order of
// the faults and their lengths. The moments at which the processes are hit are not from the seed, so that
// a seed that found something finds it again, but not always in the first try. In a round
//
//  1. two databases are made and filled, with triggers that note who writes, and under which lease;
//  2. replicas, real processes, run all workers and jobs, on request and by schedule;
//  3. faults happen, and one holder of a lease after the other is stopped until another one has it;
//  4. all is healed, and the work goes on to its end;
//  5. every row is compared with what the model of the estate says, receipts with what a trigger has
//     seen, fires with runs; and no rule of the triggers may have been broken.
//
// With -mutations it also builds caretaker with one defect after the other, and says after how many
// rounds each was found. It prints Markdown: docs/reliability.md has a report. It ends with 1 if
// something was found, or a defect was not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// options are the sizes of things.
type options struct {
	seed           uint64
	size, replicas int
	rounds         int
	time           time.Duration
	// disturb is how long faults happen in a round, patience how long the work may stand still afterwards.
	disturb, patience time.Duration
	only              list
	mutations         bool
	mutation          string
	bound             int
	// proving ends a round as soon as something was found.
	proving bool
	dir     string
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ", ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func parse(args []string, errors io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.SetOutput(errors)
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the first round; the others have the next ones")
	flags.IntVar(&o.size, "size", 3, "size of the estate: 1 has 70 users, 160 issues and 300 notes, at most 50")
	flags.IntVar(&o.replicas, "replicas", 3, "replicas, one to ten")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds to do; 0: as many as the time allows")
	flags.DurationVar(&o.time, "time", 10*time.Minute, "begin no round after this time")
	flags.DurationVar(&o.disturb, "disturb", 40*time.Second, "how long faults happen in a round")
	flags.DurationVar(&o.patience, "patience", 2*time.Minute, "how long nothing may get done when all is healed and work is left")
	flags.Var(&o.only, "only", "cause this fault alone, by its name in the report; may be repeated")
	flags.BoolVar(&o.mutations, "mutations", false, "look for built-in defects instead, one after the other")
	flags.StringVar(&o.mutation, "mutation", "", "look for this defect alone")
	flags.IntVar(&o.bound, "bound", 10, "rounds within which a defect must be found")
	flags.StringVar(&o.dir, "dir", "", "where logs and databases go; a round in which nothing was found is removed (default: a new folder in the temporary one)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("there are no arguments, but %q: see -help", flags.Args())
	}
	if o.replicas < 1 || o.replicas > 10 || o.size < 1 || o.size > 50 {
		return o, fmt.Errorf("-replicas is 1 to 10 and -size 1 to 50")
	}
	if o.rounds < 0 || o.bound < 1 || o.time <= 0 || o.disturb <= 0 || o.patience <= 0 {
		return o, fmt.Errorf("times are above 0, -rounds is 0 or more, -bound 1 or more")
	}
	for _, name := range o.only {
		if !slices.Contains(names(), name) {
			return o, fmt.Errorf("there is no fault %q: choose one of %s", name, strings.Join(names(), "; "))
		}
	}
	if o.mutation != "" && !slices.Contains(defects(), o.mutation) {
		return o, fmt.Errorf("there is no defect %q: choose one of %s", o.mutation, strings.Join(defects(), "; "))
	}
	return o, nil
}

func defects() (all []string) {
	for _, m := range mutations() {
		all = append(all, m.name)
	}
	return all
}

func names() (all []string) {
	for _, f := range faults() {
		all = append(all, f.name)
	}
	return all
}
