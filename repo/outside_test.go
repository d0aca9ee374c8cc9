package repo_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// leaving are rows whose column path is of something outside, deleted by a run or a job.
type leaving struct {
	*bench
	repo.Rows
}

func newLeaving(t *testing.T) leaving {
	t.Helper()
	b := numbered(t, "4")
	b.exec(`UPDATE t SET path = NULL WHERE id = 3`)
	rows, _ := b.catalog(map[string][]string{"t": {"owner", "path"}}).Rows("t", "owner", "1")
	return leaving{b, rows}
}

// delete deletes up to two rows.
func (l leaving) delete(l2 repo.Limits, s repo.Source) (repo.BatchResult, error) {
	permit := repo.Permit{Guard: repo.AdvisoryLock(1), Limits: l2, Source: s}
	change := repo.Change{Delete: true, Report: "path", Outside: "project_repository"}
	return l.Sweep(context.Background(), change, repo.Batch{Permit: permit, Rows: 2, Direct: true})
}

// wantNoted fails the test unless these paths are noted, with the job or run.
func (l leaving) wantNoted(want string) {
	l.Helper()
	l.want(`SELECT string_agg(concat_ws(' ', path, kind, coalesce(job_id::text, right(run_id::text, 1)), done_at IS NULL), ', ' ORDER BY id)
		FROM maintenance.outside_paths`, want)
}

func TestOutside_PathsAreNotedWithTheRowsOrNotAtAll(t *testing.T) {
	l := newLeaving(servicetest.Parallel(t))
	job := repo.Source{JobID: 7, Worker: "destroy_group"}
	short := repo.Limits{Statement: 200 * time.Millisecond, Lock: 100 * time.Millisecond}
	// What comes behind the deletion fails, is cancelled, or never comes.
	for _, breaks := range [][2]string{
		{`ALTER TABLE maintenance.receipts ADD CONSTRAINT no CHECK (false) NOT VALID`, `ALTER TABLE maintenance.receipts DROP CONSTRAINT no`},
		{`CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(9); RETURN NULL; END';
			CREATE TRIGGER nap AFTER INSERT ON maintenance.outside_paths FOR EACH ROW EXECUTE FUNCTION nap()`, `DROP FUNCTION nap CASCADE`},
		{`ALTER TABLE maintenance.outside_paths ADD CONSTRAINT no CHECK (false) NOT VALID`, `ALTER TABLE maintenance.outside_paths DROP CONSTRAINT no`},
	} {
		l.exec(breaks[0])
		if r, err := l.delete(short, job); err == nil {
			t.Errorf("%s: %+v", breaks[0], r)
		}
		l.exec(breaks[1])
		l.want(`SELECT count(*) FROM t WHERE owner = 1`, "4")
		l.wantNoted("NULL")
	}
	for range 2 {
		if r, err := l.delete(generous, job); err != nil || r.Changed != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	// Done again, nothing is there, and nothing is noted.
	if r, err := l.delete(generous, job); err != nil || r.Changed != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	l.wantNoted("p0 project_repository 7 t, p4 project_repository 7 t, p6 project_repository 7 t")
	outcome, err := l.JobChanges(context.Background(), 7)
	assert.That(t, err == nil && outcome.Outside == (repo.OutsideCount{All: 3, Pending: 3}) && outcome.Tables[0].Deleted == 4,
		"%+v, %v", outcome, err)
}

func TestOutside_PathsAreListedMarkedAndPruned(t *testing.T) {
	l := newLeaving(servicetest.Parallel(t))
	const run = "0190a1b2-0000-7000-8000-000000000001"
	for _, by := range []repo.Source{{JobID: 7}, {RunID: run}} {
		assert.Must(l.delete(generous, by))(t)
	}
	ctx := context.Background()
	list := func(f repo.OutsideFilter) (paths string) {
		t.Helper()
		f.Limit = 1
		for {
			page := assert.Must(l.ListOutside(ctx, f))(t)
			if len(page) == 0 {
				return paths
			}
			paths, f.After = paths+page[0].Path+" ", page[0].ID
		}
	}
	for want, f := range map[string]repo.OutsideFilter{
		"p0 p4 p6 ": {}, "p0 ": {JobID: 7}, "p4 p6 ": {RunID: run}, "": {JobID: 8}, "p6 ": {Pending: true, After: 2},
	} {
		if got := list(f); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	if done, unknown, err := l.AckOutside(ctx, []int64{1, 9, 8}, "ann"); err != nil || len(done) > 0 || len(unknown) != 2 || unknown[0] != 8 {
		t.Errorf("%+v, %v, %v", done, unknown, err)
	}
	l.want(`SELECT count(*) FROM maintenance.outside_paths WHERE done_at IS NOT NULL`, "0")
	for _, by := range []string{"ann", "bob"} {
		done, _, err := l.AckOutside(ctx, []int64{2, 1, 2}, by)
		if err != nil || len(done) != 2 || done[0].DoneBy != "ann" || done[1].DoneAt.IsZero() || done[0].JobID != 7 || done[1].RunID != run {
			t.Errorf("%+v, %v", done, err)
		}
	}
	if got := list(repo.OutsideFilter{Pending: true}); got != "p6 " {
		t.Error(got)
	}
	l.exec(`UPDATE maintenance.outside_paths SET done_at = now() - interval '2 days' WHERE id = 1;
		UPDATE maintenance.outside_paths SET at = now() - interval '9 years'`)
	if more, err := l.PruneHistory(ctx, 24*time.Hour); err != nil || more {
		t.Error(more, err)
	}
	if got := list(repo.OutsideFilter{}); got != "p4 p6 " {
		t.Error(got)
	}
}

func TestPruneHistory_ExpiredProtectionsGo(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by, until)
		SELECT 'group', i, 'r', 'a', CASE WHEN i > 2 THEN now() - i * interval '1 minute' WHEN i > 1 THEN now() + interval '1 hour' END
		FROM generate_series(1, 1005) i`)
	for _, want := range []bool{true, false} {
		if more, err := b.PruneHistory(context.Background(), time.Hour); err != nil || more != want {
			t.Error(more, err)
		}
	}
	b.want(`SELECT string_agg(id::text, ' ' ORDER BY id) FROM maintenance.protected_targets`, "1 2")
}

func TestPruneHistory_KeepsCancellationsOfWhatHasBegun(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1)`)
	b.exec(`INSERT INTO maintenance.user_removals (user_id, reason) VALUES (7, '')`)
	b.exec(`INSERT INTO maintenance.job_cancellations (job_id, user_id, group_id, reason, cancelled_by)
		VALUES (1, NULL, 10, 'r', 'ann'), (2, 7, NULL, 'r', 'ann'), (3, NULL, 11, 'r', 'ann'), (4, 8, NULL, 'r', 'ann')`)
	assert.Must(b.PruneHistory(t.Context(), time.Hour))(t)
	b.want(`SELECT string_agg(job_id::text, ' ' ORDER BY job_id) FROM maintenance.job_cancellations`, "1 2")
}
