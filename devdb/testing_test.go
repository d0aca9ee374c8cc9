package devdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestTests_ClonesAreApartAndEqualTheirTemplate(t *testing.T) {
	t.Parallel()
	prepared := 0
	from := Template{Name: "apart", Schema: "sec", Prepare: func(ctx context.Context, url string) error {
		prepared++
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "CREATE TABLE mine AS SELECT 1 AS n")
		return errors.Join(err, conn.Close(ctx))
	}}
	one, two := owned.Clone(t, from), owned.Clone(t, from)
	run(t, one, "INSERT INTO mine VALUES (2)", "DELETE FROM vulnerabilities")
	for url, want := range map[string]string{one: "2", two: "1", owned.Clone(t, from): "1"} {
		assert.Equal(t, column(t, url, "SELECT count(*)::text FROM mine")[0], want, "rows")
	}
	assert.Equal(t, prepared, 1, "preparations")
}

func TestTests_ClonesAreDroppedWithTheirConnections(t *testing.T) {
	t.Parallel()
	var url string
	var open *pgx.Conn
	t.Run("uses a clone", func(t *testing.T) {
		url = owned.Clone(t, Template{Name: "empty"})
		open = assert.Must(pgx.Connect(context.Background(), url))(t)
	})
	assert.That(t, !answers(url), "the clone is still there")
	if err := open.Ping(context.Background()); err == nil {
		t.Error("the connection lives")
	}
	_ = open.Close(context.Background()) // broken
}

func TestTests_ManyTestsCloneAtOnce(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			assert.That(t, answers(owned.Clone(t, Template{Name: "at_once", Schema: "ci"})), "no answer")
		})
	}
	all.Wait()
}

// failing is a test that fails.
type failing struct{ said string }

func (*failing) Helper()        {}
func (*failing) Cleanup(func()) {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

func TestTests_FailedPreparationFailsEveryTestThatAsks(t *testing.T) {
	t.Parallel()
	broken := Template{Name: "broken", Prepare: func(context.Context, string) error { return errors.New("no migrations today") }}
	for range 2 {
		f := &failing{}
		func() {
			defer func() { _ = recover() }()
			owned.Clone(f, broken)
		}()
		if !strings.Contains(f.said, "broken") || !strings.Contains(f.said, "no migrations today") {
			t.Errorf("it said %q", f.said)
		}
	}
}

// suite stands for *testing.M.
type suite func() int

func (s suite) Run() int { return s() }

func TestTests_RunStopsTheClusterAndKeepsTheResult(t *testing.T) {
	t.Parallel()
	own := Tests{Settings: map[string]string{"cluster_name": "own"}}
	var dir string
	code := own.Run(suite(func() int {
		dir = own.Cluster(t).Dir()
		return 3
	}))
	assert.That(t, code == 3 && missing(dir), "code %d, folder %s", code, dir)
	if code := new(Tests).Run(suite(func() int { return 0 })); code != 0 { // no cluster was needed
		t.Errorf("code %d", code)
	}
}

func BenchmarkClone(b *testing.B) {
	for _, schema := range []string{"", "main", "all"} {
		b.Run("schema="+schema, func(b *testing.B) {
			from := Template{Name: "benchmark" + schema, Schema: schema}
			owned.Clone(b, from)
			for b.Loop() {
				owned.Clone(b, from)
			}
		})
	}
}
