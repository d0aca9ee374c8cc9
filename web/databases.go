package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// databasesShown is the number of databases on the overview.
	databasesShown = 4
	// databasesEvery is the age from which on the states of databases are read again.
	databasesEvery = 5 * time.Second
)

// databases serves the list of databases.
func (p lists) databases(w http.ResponseWriter, r *http.Request) {
	samples := p.samples(r.Context())
	listing[databaseRow]{
		name: "databases", title: "Databases", more: samples,
		filters: []filter{{Name: "name", Label: "Name", Hint: "part of the name"}},
		read: func(ctx context.Context, q url.Values, limit int, after string) (page pageOf[databaseRow]) {
			from, err := strconv.Atoi(cmp.Or(after, "0"))
			if err != nil || from < 0 {
				return badCursor[databaseRow]("a number")
			}
			found := slices.DeleteFunc(slices.Clone(p.figures(ctx).Value), func(f status.DatabaseFigures) bool {
				return !contains(q.Get("name"), f.Name)
			})
			found = found[min(from, len(found)):]
			if len(found) > limit {
				found, page.next = found[:limit], strconv.Itoa(from+limit)
			}
			states := read(ctx, p.recent, fmt.Sprintf("databases %d %q", from, q.Get("name")), databasesEvery,
				func(ctx context.Context) ([]service.DatabaseState, error) {
					return p.config.Service.DatabaseStates(ctx, found), nil
				})
			for _, s := range states.Value {
				page.Value = append(page.Value, newDatabaseRow(s, samples.Value[s.Name], samples.At))
			}
			page.At = states.At
			return page
		},
	}.serve(p.pages, w, r)
}

// databaseRow has the state of a database, and the charts of its backlog, the duration of its
// statements and its load. P50 and P99 are "" if unknown.
type databaseRow struct {
	service.DatabaseState
	P50, P99 string
	Charts   [3]chart
}

// Databases returns the first databases of the list of databases.
func (b *board) Databases() (all []databaseRow) {
	for _, f := range b.Figures.Value[:min(len(b.Figures.Value), databasesShown)] {
		s := service.DatabaseState{DatabaseFigures: f}
		all = append(all, newDatabaseRow(s, b.Samples.Value[f.Name], b.Samples.At))
	}
	return all
}

// figures returns the current figures of all databases.
func (p *pages) figures(ctx context.Context) part[[]status.DatabaseFigures] {
	workers := p.statuses(ctx).Value
	return read(ctx, p.recent, "figures", readEvery, func(ctx context.Context) ([]status.DatabaseFigures, error) {
		return p.config.Service.DatabaseStatus(ctx, workers), nil
	})
}

// samples returns the samples of all databases.
func (p *pages) samples(ctx context.Context) part[map[string][]status.DatabaseSample] {
	return readLater(ctx, p.recent, "samples", historyEvery, p.config.Service.DatabaseSamples)
}

// newDatabaseRow returns the state of a database with its charts.
func newDatabaseRow(state service.DatabaseState, samples []status.DatabaseSample, now time.Time) databaseRow {
	row := databaseRow{DatabaseState: state}
	backlog := lastDay(now, status.SampleStep)
	times, limits := lastDay(now, status.SampleStep), lastDay(now, status.SampleStep)
	for _, s := range samples {
		if s.Pending != nil {
			text := format.Number(*s.Pending) + " pending"
			if s.Oldest != nil && *s.Oldest > 0 {
				text += ", oldest " + span(seconds(*s.Oldest))
			}
			backlog.set(s.At, bin{all: float64(*s.Pending), text: text})
		}
		if s.P50 != nil && s.P99 != nil {
			p50, p99 := lasted(seconds(*s.P50)), lasted(seconds(*s.P99))
			if now.Sub(s.At) < status.SampleStep {
				row.P50, row.P99 = p50, p99
			}
			times.set(s.At, bin{*s.P99, *s.P50, "p50 " + p50 + ", p99 " + p99})
		}
		if s.Load != nil {
			limits.set(s.At, bin{all: *s.Load, text: fmt.Sprintf("%.0f%% of the limit", 100**s.Load)})
		}
	}
	row.Charts = [3]chart{
		backlog.chart("Backlog of " + row.Name), times.chart("Duration of statements on " + row.Name),
		limits.chart("Load on " + row.Name),
	}
	return row
}

// seconds returns a number of seconds as a duration.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
