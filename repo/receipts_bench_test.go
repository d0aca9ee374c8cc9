package repo_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// BenchmarkReceipts_Cost deletes 5,000 rows of a table like that of benchmark (a) by a statement with its receipt and by one
// without, in turn. It reports the median of the ratios of such pairs, in percent, and their quartiles; where Linux says how
// long the server's processes ran, also of that time, which hardly depends on what else the machine does. Use -benchtime=200x.
func BenchmarkReceipts_Cost(b *testing.B) {
	const keys, rows = 500, 10
	ctx := context.Background()
	url := databases.Clone(b, servicetest.Migrated(""))
	d := servicetest.Open(b, url)
	exec := func(sql string, args ...any) {
		if err := d.Exec(ctx, sql, args...); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`CREATE TABLE children (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent_id bigint NOT NULL, title text NOT NULL,
		created_at timestamptz NOT NULL DEFAULT now())`)
	exec(`CREATE INDEX ON children (parent_id)`)
	children, err := d.Children(ctx, []repo.LooseForeignKey{{Table: "children", Columns: []string{"parent_id"}, Parent: "parents", OnDelete: repo.AsyncDelete}})
	if err != nil || children[0] == nil {
		b.Fatal(children, err)
	}
	next := int64(0)
	measure := func(purge func(context.Context, repo.Purge) error) (took, ran float64) {
		p := repo.Purge{Permit: unguarded(), Cap: 10 * keys * rows, Uncounted: true}
		var numbers []int64
		for range keys {
			next++
			numbers = append(numbers, next)
		}
		p.Keys = repo.IntKeys(numbers...)
		exec(`INSERT INTO children (parent_id, title) SELECT k, 'child ' || n || ' of ' || k FROM generate_series(1, $1::bigint) n, unnest($2::bigint[]) k`, rows, numbers)
		before, start := running(ctx, b, d), time.Now()
		assert.NoError(b, purge(ctx, p))
		took = float64(time.Since(start))
		return took, running(ctx, b, d) - before
	}
	with := func(ctx context.Context, p repo.Purge) error {
		return second(children[0].PurgeAll(ctx, p, repo.DeletedRecords{}, nil))
	}
	without := children[0].PurgeWithoutReceipt
	var longer, busier, each []float64
	for i := 0; b.Loop(); i++ {
		first, second := with, without
		if i%2 == 1 {
			first, second = without, with
		}
		took, ran := measure(first)
		otherTook, otherRan := measure(second)
		if i%2 == 1 {
			took, ran, otherTook, otherRan = otherTook, otherRan, took, ran
		}
		longer, busier = append(longer, 100*(took/otherTook-1)), append(busier, 100*(ran/otherRan-1))
		each = append(each, (ran-otherRan)/keys/rows)
	}
	for unit, all := range map[string][]float64{"%time": longer, "%CPU": busier, "ns/row": each} {
		slices.Sort(all)
		for i, part := range []string{"quartile1", "median", "quartile3"} {
			b.ReportMetric(all[(i+1)*len(all)/4], unit+"-"+part)
		}
	}
}

// running is for how long the processes behind the connections have run, in nanoseconds; 0 where the system does not say.
func running(ctx context.Context, b *testing.B, d *repo.Database) (all float64) {
	b.Helper()
	pids := assert.Must(d.Backends(ctx))(b)
	for _, pid := range pids {
		var one float64
		if content, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid)); err == nil {
			_, _ = fmt.Sscan(string(content), &one)
		}
		all += one
	}
	return all
}
