package devdb

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// trickling runs Trickle on the estate until the test ends.
func trickling(t *testing.T, urls map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Trickle(ctx, urls, 10*time.Millisecond, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// reaches waits until the query's number is reached.
func reaches(t *testing.T, url, what, query string, least int) {
	t.Helper()
	Eventually(t, what, func() bool {
		got := assert.Must(strconv.Atoi(column(t, url, query)[0]))(t)
		return got >= least
	})
}

func recordsOf(parent string) string {
	return "SELECT count(*)::text FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public." + parent + "'"
}

func TestTrickle_KeepsDeletingParentsWithChildren(t *testing.T) {
	t.Parallel()
	urls := demoEstate(t)
	trickling(t, urls)
	for parent, before := range map[string]int{"users": 100, "projects": 40, "namespaces": 60, "merge_requests": 350} {
		reaches(t, urls["main"], parent, recordsOf(parent), before+2)
	}
	reaches(t, urls["ci"], "p_ci_pipelines", recordsOf("p_ci_pipelines"), 302)
	reaches(t, urls["ci"], "pipelines", "SELECT count(*)::text FROM p_ci_pipelines", 10004)
	reaches(t, urls["sec"], "vulnerabilities", "SELECT count(*)::text FROM vulnerabilities", 502)
}

func TestTrickle_StopsAddingAtTheLimit(t *testing.T) {
	t.Parallel()
	urls := demoEstate(t)
	const fill = `WITH added AS (INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.users', 0 FROM generate_series(1, 2000) RETURNING 1) SELECT count(*)::text FROM added`
	column(t, urls["sec"], fill)
	const newest = "SELECT max(id)::text FROM namespaces"
	before := column(t, urls["main"], newest)[0]
	for range 3 {
		assert.NoError(t, trickle(t.Context(), urls, time.Second))
	}
	assert.Equal(t, column(t, urls["main"], newest)[0], before, "newest namespace")
}

func TestTrickle_SurvivesADatabaseError(t *testing.T) {
	t.Parallel()
	urls := demoEstate(t)
	run(t, urls["sec"], "ALTER TABLE vulnerabilities RENAME TO elsewhere")
	trickling(t, urls)
	// Ticks fail in sec, and yet they leave nothing in main.
	reaches(t, urls["main"], "projects deleted", recordsOf("projects"), 43)
	run(t, urls["sec"], "ALTER TABLE elsewhere RENAME TO vulnerabilities")
	reaches(t, urls["sec"], "vulnerabilities", "SELECT count(*)::text FROM vulnerabilities", 502)
	reaches(t, urls["main"], "ticks that left nothing", "SELECT (count(*) = 120)::int::text FROM projects", 1)
}
