package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// curve measures loose_foreign_keys_cleanup at several sizes, in turn, and draws the figures over the size.
type curve struct {
	name, title, size string
	// stages makes the databases that the stages begin with.
	stages func(context.Context, *lab) ([]stage, error)
}

// stage is one size: databases to be copied, main first, and what is done there.
type stage struct {
	size      int
	templates []string
	keys      []lfk.Definition
	// queues are in the first databases: so many have records, each of which one run drains.
	queues   int
	replicas int
	// rows go in all.
	rows int
}

// figures are what one stage measured once.
type figures struct {
	rows, p50, p99, memory float64
	others                 float64
}

// measure works all stages in each round, in turn, and in the other order in every second one.
func (c curve) measure(ctx context.Context, l *lab) (*report, error) {
	stages, err := c.stages(ctx, l)
	if err != nil {
		return nil, err
	}
	measured, note, err := rounds(l, l.repeat, func(round int) ([]figures, float64, error) {
		all, others := make([]figures, len(stages)), 0.0
		for i := range stages {
			if round%2 == 1 {
				i = len(stages) - 1 - i
			}
			f, err := l.stage(ctx, stages[i])
			if err != nil {
				return nil, 0, fmt.Errorf("%s %d: %w", c.size, stages[i].size, err)
			}
			l.say("  %s %s: %s rows/s", c.size, grouped(int64(stages[i].size)), grouped(int64(f.rows)))
			all[i], others = f, max(others, f.others)
		}
		return all, others, nil
	})
	if err != nil {
		return nil, err
	}
	r := c.table(stages, measured)
	r.note("%s", note)
	return r, l.draw(r, c.name, c.chart(stages, measured))
}

func (c curve) table(stages []stage, measured [][]figures) *report {
	r := &report{header: []string{c.size, "rows", "rows/s", "range", "p50", "p99", "peak memory"}}
	for i, s := range stages {
		rows, p50, p99, memory := columns(measured, i)
		r.row(grouped(int64(s.size)), grouped(int64(s.rows)), grouped(int64(median(rows))),
			grouped(int64(slices.Min(rows)))+" to "+grouped(int64(slices.Max(rows))),
			fmt.Sprintf("%.1f ms", median(p50)), fmt.Sprintf("%.1f ms", median(p99)), fmt.Sprintf("%.0f MB", median(memory)))
	}
	return r
}

func (c curve) chart(stages []stage, measured [][]figures) chart {
	speed, half, most, peak := line{name: "rows/s"}, line{name: "p50"}, line{name: "p99"}, line{name: "memory"}
	for i, s := range stages {
		rows, p50, p99, memory := columns(measured, i)
		speed.points = append(speed.points, over(s.size, rows))
		half.points = append(half.points, over(s.size, p50))
		most.points = append(most.points, over(s.size, p99))
		peak.points = append(peak.points, over(s.size, memory))
	}
	return chart{"loose_foreign_keys_cleanup: " + c.title, c.size, []panel{
		{"rows deleted a second", []line{speed}},
		{"time of a statement on a child table, ms", []line{half, most}},
		{"peak memory of the process, MB", []line{peak}},
	}}
}

// columns are the figures of one stage, by round.
func columns(measured [][]figures, stage int) (rows, p50, p99, memory []float64) {
	for _, m := range measured {
		f := m[stage]
		rows, p50, p99, memory = append(rows, f.rows), append(p50, f.p50), append(p99, f.p99), append(memory, f.memory)
	}
	return rows, p50, p99, memory
}

// draw writes the picture, unless no folder is given, and refers to it.
func (l *lab) draw(r *report, name string, c chart) error {
	picture := c.String()
	if l.images == "" {
		return nil
	}
	file := filepath.Join(l.images, "scale-"+name+".svg")
	r.note("Picture: %s", file)
	return os.WriteFile(file, []byte(picture), 0o644) //nolint:gosec // a public picture
}

// onChild finds statements that name a child table, all of which are called children and a number.
var onChild = regexp.MustCompile(`"children`)

// arranged are the databases of a stage, main first, and the servers that work on them.
type arranged struct {
	databases []*database
	replicas  []*caretaker
}

// arrange makes fresh copies and opens the servers. prepare is done to each copy before.
func (l *lab) arrange(ctx context.Context, s stage, prepare func(*database) error) (a arranged, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.drop(ctx))
		}
	}()
	for i, template := range s.templates {
		name := "work"
		if i > 0 {
			name = fmt.Sprintf("work_%d", i)
		}
		d, err := l.copy(ctx, template, name)
		if err != nil {
			return a, err
		}
		a.databases = append(a.databases, d)
		if err := errors.Join(d.settle(ctx), prepare(d)); err != nil {
			return a, err
		}
	}
	for range s.replicas {
		c, err := newCaretaker(ctx, a.databases[0], s.keys, 0, a.databases[1:]...)
		if err != nil {
			return a, err
		}
		if err := c.service.Healthy(ctx); err != nil {
			return a, err
		}
		a.replicas = append(a.replicas, c)
	}
	return a, nil
}

func (a arranged) drop(ctx context.Context) (err error) {
	for _, d := range a.databases { // main first, which closes the servers
		err = errors.Join(err, d.drop(ctx))
	}
	return err
}

// stage does one stage on fresh copies.
func (l *lab) stage(ctx context.Context, s stage) (f figures, err error) {
	a, err := l.arrange(ctx, s, func(d *database) error { return d.logStatements(ctx) })
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, a.drop(ctx)) }()
	log, err := l.serverLog()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	var took cost
	f.memory, err = peakMemory(func() (err error) {
		took, err = l.timed(func() error { return drain(ctx, s, a.replicas) })
		return err
	})
	if err != nil {
		return f, err
	}
	statements, err := statementTimes(log, onChild)
	if err == nil && len(statements) == 0 {
		err = errors.New("the server's log tells of no statement on a child table")
	}
	f.rows, f.others = float64(s.rows)/took.time.Seconds(), took.others
	f.p50, f.p99 = inMilliseconds(percentile(statements, 50)), inMilliseconds(percentile(statements, 99))
	return f, err
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// drain drains all queues. A replica that is done with one takes the next.
func drain(ctx context.Context, s stage, replicas []*caretaker) error {
	queues := make(chan string, s.queues)
	for i := range s.queues {
		queues <- databaseName(i)
	}
	close(queues)
	var wait sync.WaitGroup
	rows, errs := make([]int64, len(replicas)), make([]error, len(replicas))
	for i, c := range replicas {
		wait.Go(func() {
			for name := range queues {
				run, err := c.cleanIn(ctx, name)
				rows[i] += run.Counts["deleted_rows"]
				if err != nil {
					errs[i] = fmt.Errorf("%s: %w", name, err)
					return
				}
			}
		})
	}
	wait.Wait()
	sum := 0
	for _, n := range rows {
		sum += int(n)
	}
	err := errors.Join(errs...)
	if err == nil && sum != s.rows {
		err = fmt.Errorf("%d rows were deleted, which should be %d", sum, s.rows)
	}
	return err
}

// databaseName is how the service knows the database with this number.
func databaseName(i int) string {
	if i == 0 {
		return "main"
	}
	return fmt.Sprintf("shard_%d", i)
}
