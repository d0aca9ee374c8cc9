// Bench measures caretaker's five workers beside other ways to do the same work. These are the
// replaced ways, and the one statement that is PostgreSQL's own limit. All run on one PostgreSQL
// that it starts for itself, in turn and several times over. Scenarios (a) to (e) and (m) are
// loose_foreign_keys_cleanup, (f) is inactive_token_deletion, (g) ghost_user_migration, and (h)
// placeholder_user_cleanup. (i) and (j) are adjourned_group_deletion and its job. (k) is a server
// with nothing to do, (l) the cost of calls after years. It prints Markdown: docs/performance.md
// explains the figures and has a run of them.
//
// With -scale it measures curves instead: loose_foreign_keys_cleanup at growing sizes, with a picture of each, for
// docs/performance.md.
//
// It fails when rows are left over or missing, never because of a figure.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measure(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// scenario is a question that a table answers. Its letter is that of docs/contributing/benchmarks.md.
type scenario struct {
	letter, title string
	run           func(context.Context, *lab) (*report, error)
}

func scenarios() []scenario {
	return []scenario{
		{"a", "Deleted parents with children", compareWays},
		{"b", "A long queue", compareBacklogs},
		{"c", "A parent with many definitions and no children", countStatements},
		{"d", "An application at work beside it", compareForeground},
		{"e", "How long one statement takes", measureStatements},
		{"f", "Project bots that keep their tokens", comparePasses},
		{"g", "A user with many contributions", compareMigrations},
		{"h", "Placeholder users to be claimed", compareClaims},
		{"i", "Groups with many above them and many members", compareDecisions},
		{"j", "A project with many issues", compareRemovals},
		{"k", "A server with nothing to do", measureIdle},
		{"l", "A long history", measureHistory},
		{"m", "Keys of other types", compareKeys},
	}
}

// options are the sizes of things.
type options struct {
	parents, children    int
	backlog, definitions int
	bots, contributions  int
	placeholders, issues int
	runs, jobs, records  int
	watch                time.Duration
	repeat, tries        int
	only                 string
	quick, durable       bool
	scale, full          bool
	rows                 int
	images               string
	plans                bool
	timeout, idle        time.Duration
}

func parse(args []string, help io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.parents, "parents", 50_000, "deleted parents in (a)")
	flags.IntVar(&o.children, "children", 10, "child rows of each parent")
	flags.IntVar(&o.backlog, "backlog", 1_000_000, "records in the long queue of (b), which is compared with one of 10,000")
	flags.IntVar(&o.definitions, "definitions", 153, "definitions of the parent in (c)")
	flags.IntVar(&o.bots, "bots", 1_000_000, "project bots in (f)")
	flags.IntVar(&o.contributions, "contributions", 1_000_000, "contributions of the user in (g)")
	flags.IntVar(&o.placeholders, "placeholders", 100_000, "eligible rows in (h)")
	flags.IntVar(&o.issues, "issues", 1_000_000, "issues of the project in (j)")
	flags.IntVar(&o.runs, "runs", 1_000_000, "runs in (l), and as many fires")
	flags.IntVar(&o.jobs, "jobs", 1_000_000, "jobs in (l)")
	flags.IntVar(&o.records, "records", 10_000_000, "records in the queue in (l)")
	flags.DurationVar(&o.watch, "watch", 3*time.Minute, "how long the server is polled in (l)")
	flags.BoolVar(&o.plans, "plans", false, "show the plans of statements over 20 ms in (l)")
	flags.IntVar(&o.repeat, "repeat", 5, "how often each side is measured, slow ones half as often")
	flags.IntVar(&o.tries, "tries", 3, "how many rounds are measured at most for each that counts, while other programs disturb")
	flags.StringVar(&o.only, "only", "", "run these alone, as in a,c")
	flags.BoolVar(&o.quick, "quick", false, "tiny sizes, everything once: shows that it works, measures nothing")
	flags.BoolVar(&o.durable, "durable", false, "with fsync, synchronous_commit and full_page_writes on")
	flags.BoolVar(&o.scale, "scale", false, "measure the curves of docs/performance.md instead: backlog, children, definitions, databases, replicas, trigger, foreground, history")
	flags.IntVar(&o.rows, "rows", 200_000, "rows that go at each size of a curve of -scale; a tenth as many parents are deleted for trigger")
	flags.BoolVar(&o.full, "full", false, "a queue of 10,000,000 records too, with -scale")
	flags.StringVar(&o.images, "images", "", "the `folder` to write the pictures of -scale to; empty, or with -quick: none is written")
	flags.DurationVar(&o.idle, "idle", 10*time.Minute, "how long the idle server of (k) is watched")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "give up after this long")
	if err := commandline.Parse(flags, args, help); err != nil {
		return o, err
	}
	if o.quick {
		o.parents, o.children, o.backlog, o.definitions, o.repeat, o.tries = 1500, 4, 12_000, 20, 1, 1
		o.idle = 5 * time.Second
		o.bots, o.contributions, o.placeholders, o.issues = 3000, 12_000, 1200, 3000
		o.runs, o.jobs, o.records, o.watch = 3000, 3000, 3000, time.Second
		o.rows, o.full, o.images = 1000, false, ""
		return o, nil
	}
	if o.backlog < smallBacklog {
		return o, fmt.Errorf("-backlog is %d: it must be %d or more, which it is compared with", o.backlog, smallBacklog)
	}
	if o.rows < 10 || o.contributions < 4 {
		return o, fmt.Errorf("-rows is %d and -contributions %d: they must be 10 and 4 or more", o.rows, o.contributions)
	}
	return o, commandline.Positive(flags, "parents", "children", "definitions", "repeat", "tries", "bots", "placeholders", "issues",
		"runs", "jobs", "records", "watch", "idle", "timeout")
}

func measure(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	l, err := openLab(ctx, o, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close(ctx)) }()
	machine, err := l.machine(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, machine)
	for _, s := range chosen {
		l.say("(%s) %s", s.letter, s.title)
		r, err := s.run(ctx, l)
		if err != nil {
			return fmt.Errorf("(%s) %s: %w", s.letter, s.title, err)
		}
		fmt.Fprintf(out, "\n## (%s) %s\n\n%s", s.letter, s.title, r)
	}
	return nil
}

func choose(o options) ([]scenario, error) {
	all := scenarios()
	if o.scale {
		all = curves()
	}
	if o.only == "" {
		return all, nil
	}
	var chosen []scenario
	for letter := range strings.SplitSeq(o.only, ",") {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.letter == letter })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: there is no %q: choose of %s", o.only, letter, letters(all))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func letters(all []scenario) string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.letter
	}
	return strings.Join(out, ",")
}
