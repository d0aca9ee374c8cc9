package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// slopes prints where the series go.
func (e *estate) slopes(out io.Writer, trends []trend) {
	fmt.Fprintf(out, "%d cores, load %s, %s/%s, %s, PostgreSQL %s. %s of %s days, the first quarter left out; the second server was "+
		"replaced %d times.\n\n", runtime.NumCPU(), load(), runtime.GOOS, runtime.GOARCH, runtime.Version(), e.version, e.time.Round(time.Second), e.day,
		e.replaced)
	fmt.Fprintln(out, "| series | mean | slope an hour | standard error | bound | rises |\n|---|---|---|---|---|---|")
	var constant []string
	for _, t := range trends {
		if figure(t.slope) == "0" && figure(t.stdErr) == "0" {
			if t.mean > 0 && !strings.HasPrefix(t.name, "size: ") {
				constant = append(constant, fmt.Sprintf("%s (%s)", t.name, figure(t.mean)))
			}
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s |\n", t.name, figure(t.mean), figure(t.slope), figure(t.stdErr), figure(t.bound),
			t.verdict())
	}
	fmt.Fprintf(out, "\nConstant: %s; and all that is not listed.\n\n", strings.Join(constant, "; "))
}

// totals prints what was worked in all, and the remainder over.
func (e *estate) totals(out io.Writer, left []leftover) {
	w := e.worked
	fmt.Fprintf(out, "Worked in all: %.0f rows, users and groups by %.0f runs that succeeded, %.0f that failed, %.0f skipped, "+
		"%.0f cancelled; %.0f jobs that succeeded, %.0f other attempts; %.0f fires, %.0f missed; %.0f statements. Errors in the logs: "+
		"%.0f. Left over: %d kinds of rows.\n",
		w["maintenance_rows_total"], w["maintenance_runs_total/succeeded"], w["maintenance_runs_total/failed"],
		w["maintenance_runs_total/skipped"], w["maintenance_runs_total/cancelled"], w["maintenance_jobs_total/succeeded"],
		w["maintenance_jobs_total"]-w["maintenance_jobs_total/succeeded"], w["maintenance_fires_total"],
		w["maintenance_fires_total/missed"], w["maintenance_statement_duration_seconds_count"], w["log_errors"], len(left))
	for _, l := range left {
		fmt.Fprintf(out, "\n* %s: %d %s\n", l.database, l.rows, l.what)
	}
}

// tally adds up what all servers have counted.
func (e *estate) tally(ctx context.Context) error {
	e.worked = e.gone
	for _, s := range []*server{e.first, e.second} {
		f, err := s.read(ctx)
		if err != nil {
			return err
		}
		e.worked = f.plus(e.worked)
	}
	return nil
}

// load is how many processes wanted a core in the last minutes, where Linux shows it.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
