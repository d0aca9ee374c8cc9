// Soak watches caretaker for any time, to find growth. It starts a private PostgreSQL with
// autovacuum on and two servers whose five workers run every minute. An application makes rows and
// deletes them, at a trickle and in bursts.
//
// A day lasts a minute (-day). At its end the timestamps of history, retry periods, grace periods
// and queue partitions are moved back. So all that takes days is due. The second server is replaced
// every few days (-replace), as by a deployment. A server prunes the history when it starts and
// once an hour. The first server lives as long as the soak, and its memory is what is watched.
//
// It prints Markdown: of each series the slope with its standard error, the first quarter left out,
// and what was worked in all. It fails if a series rises beyond its bound, or if rows are left over
// when the application has stopped. If it is interrupted, it prints the slopes until then.
// docs/contributing/soak.md has a result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caretaker-go/caretaker/bench/commandline"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// options are what was asked for.
type options struct {
	time, every, day, replace, drain time.Duration
	burst                            int
	bound                            float64
	quick                            bool
	dir                              string
}

func parse(args []string, help io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.DurationVar(&o.time, "time", 20*time.Minute, "how long the application is at work")
	flags.DurationVar(&o.every, "every", 5*time.Second, "how often everything is measured")
	flags.DurationVar(&o.day, "day", time.Minute, "how long a day lasts")
	flags.DurationVar(&o.replace, "replace", 4*time.Minute, "how often the second server is replaced, which prunes the history")
	flags.DurationVar(&o.drain, "drain", 5*time.Minute, "how long the servers may take for the rest at the end")
	flags.IntVar(&o.burst, "burst", 1000, "orders that are deleted at once, once a day, with 20 items each")
	flags.Float64Var(&o.bound, "bound", 10, "how many percent of its mean a series may rise in an hour")
	flags.BoolVar(&o.quick, "quick", false, "an application for four seconds, about a minute in all: shows that it works, measures nothing")
	flags.StringVar(&o.dir, "dir", "", "`directory` for the servers' logs and all samples; default a new temporary one")
	if err := commandline.Parse(flags, args, help); err != nil {
		return o, err
	}
	if o.quick {
		o.time, o.every, o.day, o.replace, o.burst = 4*time.Second, 200*time.Millisecond, time.Second, 2*time.Second, 50
	}
	return o, commandline.Positive(flags, "time", "every", "day", "replace", "drain", "burst", "bound")
}

func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	e, err := openEstate(ctx, o, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	e.say("the application is at work for %s; logs and samples are in %s", o.time, e.dir)
	if err := e.soak(ctx); err != nil {
		if ctx.Err() != nil {
			e.time = time.Since(e.began)
			e.slopes(out, e.samples.trends(e.options))
			err = fmt.Errorf("interrupted after %s: what is left over was not looked at", e.time.Round(time.Second))
		}
		return errors.Join(err, e.samples.write(e.dir), fmt.Errorf("logs and samples are in %s", e.dir))
	}
	e.say("the application has stopped, the rest is worked off")
	left, err := e.drain(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(e.tally(ctx), e.samples.write(e.dir)); err != nil {
		return err
	}
	trends := e.samples.trends(o)
	e.slopes(out, trends)
	e.totals(out, left)
	e.say("logs and samples are in %s", e.dir)
	return failure(trends, left, o, e.dir)
}

// soak lets the application work, time pass and everything be measured until the time is over.
func (e *estate) soak(ctx context.Context) (err error) {
	app, err := e.startApplication(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.stop(context.WithoutCancel(ctx))) }()
	end := time.After(e.time)
	sample, day, replace := time.NewTicker(e.every), time.NewTicker(e.day), time.NewTicker(e.replace)
	defer sample.Stop()
	defer day.Stop()
	defer replace.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case err = <-app.failed:
		case <-sample.C:
			err = e.sample(ctx)
		case <-day.C:
			err = errors.Join(e.passDay(ctx), app.burst(ctx))
		case <-replace.C:
			err = e.replaceServer(ctx)
		}
	}
	return err
}
