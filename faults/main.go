// Faults breaks processes, networks and servers while several replicas of caretaker work on a
// random estate. It checks that nothing was lost, done twice, or written without a lease.
//
// A campaign is a number of rounds, each with a seed of its own. The seed gives the estate, the
// order of the faults and how long they last. It does not give the moment at which they hit a
// process. A seed that found something may need several tries to find it again. A round
//
//  1. makes the databases main, ci and sec, fills them, and adds the triggers of rules.sql, which
//     check every write and its writer (lab.go),
//  2. starts the replicas, real processes that run the five workers of the pipeline (not
//     orphan_audit) and all jobs, on request and by schedule (replica.go),
//  3. causes faults one after the other (faults.go, faults_server.go, proxy.go). All the while it
//     freezes replicas that hold a lease (freeze.go), and an application writes to the same rows.
//  4. heals everything and waits until the work is done (round.go),
//  5. compares the databases with the model of devdb/oracle, receipts with the rows that triggers
//     have seen, and fires with runs. It reads the violations that the triggers have found
//     (checks.go).
//
// With -mutations it builds caretaker with one mutation after the other (mutations.go, build.go). A
// mutation is a deliberate defect. It reports in which round each was found. It prints Markdown:
// docs/contributing/faults.md has a report. It exits with 1 if there was a violation, if a
// mutation was not found, if it was interrupted, or if the harness itself failed.
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

	"github.com/caretaker-go/caretaker/bench/commandline"
	"github.com/caretaker-go/caretaker/devdb/oracle"
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
	// disturb is how long faults happen in a round. timeout is how long nothing may be changed
	// afterwards while work remains.
	disturb, timeout time.Duration
	only             list
	mutations        bool
	mutation         string
	bound            int
	// proving ends a round as soon as something was found.
	proving bool
	dir     string
	// temporary: dir is ours to remove.
	temporary bool
	progress  io.Writer
}

func (o options) say(format string, args ...any) { fmt.Fprintf(o.progress, format+"\n", args...) }

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ", ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func parse(args []string, progress io.Writer) (options, error) {
	o := options{progress: progress}
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the first round; the others have the next ones")
	flags.IntVar(&o.size, "size", 3, "size of the estate: 1 has 70 users, 160 issues and 300 notes, at most 50")
	flags.IntVar(&o.replicas, "replicas", 3, "replicas, one to ten")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds to do; 0: as many as the time allows")
	flags.DurationVar(&o.time, "time", 10*time.Minute, "begin no round after this time; one that has begun is brought to its end")
	flags.DurationVar(&o.disturb, "disturb", 40*time.Second, "how long faults happen in a round")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "after the faults: give a round up when nothing was changed for so long and work is left")
	flags.Var(&o.only, "only", "cause this fault alone, by its name in the report; may be repeated")
	flags.BoolVar(&o.mutations, "mutations", false, "build in one mutation after the other instead, and see whether each is found")
	flags.StringVar(&o.mutation, "mutation", "", "build in this mutation alone")
	flags.IntVar(&o.bound, "bound", 10, "rounds within which a mutation must be found")
	flags.StringVar(&o.dir, "dir", "", "`folder` for logs and databases, made if need be; it stays, without the rounds in which nothing was found (default: a temporary one, which goes if nothing was found)")
	if err := commandline.Parse(flags, args, progress); err != nil {
		if o.mutations && flags.NArg() > 0 {
			err = fmt.Errorf("%w; for one mutation alone -mutation %q", err, strings.Join(flags.Args(), " "))
		}
		return o, err
	}
	err := errors.Join(
		commandline.Within(flags, "size", 1, oracle.MaxSize), commandline.Within(flags, "replicas", 1, 10), commandline.Within(flags, "rounds", 0, 1_000_000),
		commandline.Positive(flags, "time", "disturb", "timeout", "bound"))
	if err != nil {
		return o, err
	}
	for _, name := range o.only {
		if !slices.Contains(names(), name) {
			return o, fmt.Errorf("there is no fault %q: choose one of %s", name, strings.Join(names(), "; "))
		}
	}
	if o.mutation != "" && !slices.Contains(mutationNames(), o.mutation) {
		return o, fmt.Errorf("there is no mutation %q: choose one of %s", o.mutation, strings.Join(mutationNames(), "; "))
	}
	return o, nil
}

func mutationNames() (all []string) {
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
