package group_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestFault_DestroyGroup_KilledInTheMiddleItIsCompletedWithoutTheMembershipsThatAreGone(t *testing.T) {
	t.Parallel()
	for table, rows := range map[string]string{
		"projects": "true", "members": "OLD.source_type = 'Namespace' AND OLD.source_id = 10", "epics": "OLD.group_id = 10",
		"group_deletion_schedules": "true",
	} {
		t.Run(table, func(t *testing.T) {
			g := servicetest.NewGroups(servicetest.Parallel(t))
			g.User(2, `user_type = 6`)
			g.Owned(10, 15)
			g.Group(11, 10, "sub")
			g.Project(1, 11, "p")
			g.Content(1)
			g.GroupContent(10)
			g.GroupContent(11)
			g.Member(10, 2, 30)
			g.Gate("main", table, rows)
			g.Shut("main", "doomed")
			g.Run("scheduled_jobs=1")
			g.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
			g.Killed(g.Start("doomed", "", servicetest.WorksGroups))
			g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
			g.WantMarked("10")
			g.WantRows(map[string]int{"maintenance.group_removals": 1})
			if table == "epics" {
				g.Want("main", `SELECT count(*) FROM members WHERE source_type = 'Namespace' AND source_id = 10`, "0")
				g.WantBots("2 by 1")
			}
			// The run leaves it to its job, whatever U's rights are now.
			g.Exec("main", `UPDATE users SET state = 'banned' WHERE id = 1`)
			g.Run("")
			g.Exec("main", `UPDATE maintenance.river_job SET state = 'retryable' WHERE kind = 'destroy_group'`)
			g.Attempt("completed succeeded")
			g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0, "issues": 0, "epics": 0, "routes": 0, "maintenance.group_removals": 0})
			g.WantBots("2 by 1")
		})
	}
}

func runThatHasLostItsLeaseChangesNothingMore(g *servicetest.Groups) {
	plant(g, "10 mark=1@15", "11 mark=1@15", "12 mark=1@15", "13 owner=1 mark=1@15")
	g.Exec("main", `CREATE FUNCTION take_over() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE maintenance.leases SET holder = 'other', epoch = epoch + 1; RETURN NULL; END $$`)
	g.Exec("main", `CREATE TRIGGER take_over AFTER DELETE ON group_deletion_schedules FOR EACH ROW WHEN (OLD.group_id = 11) EXECUTE FUNCTION take_over()`)
	r := assert.Must(g.Service.RunBatch(context.Background(), run.Request{Worker: servicetest.AdjournedGroups}))(g.T)
	servicetest.WantState(g.T, r, "failed")
	assert.That(g.T, r.Reason == "LEASE_LOST", "reason %q", r.Reason)
	servicetest.WantCounts(g.T, r, "restored_groups=2")
	g.WantMarked("12 13")
	g.WantJobs()
}

// stopper closes a channel at the first line that contains a text.
type stopper struct {
	slog.Handler
	at      string
	once    *sync.Once
	stopped chan struct{}
}

func (s stopper) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, s.at) {
		s.once.Do(func() { close(s.stopped) })
	}
	return s.Handler.Handle(ctx, r)
}

func (s stopper) WithAttrs(attrs []slog.Attr) slog.Handler {
	s.Handler = s.Handler.WithAttrs(attrs)
	return s
}

// workJob does an attempt of the removal of group 10 that ends when the log reports at ("": at
// once).
func workJob(g *servicetest.Groups, at string) (job.Result, error) {
	g.T.Helper()
	return attempt(g, at)()
}

// attempt is such an attempt, to be done by whatever goroutine.
func attempt(g *servicetest.Groups, at string) func() (job.Result, error) {
	g.T.Helper()
	stop := stopper{slog.NewTextHandler(&g.Log, nil), at, &sync.Once{}, make(chan struct{})}
	if at == "" {
		close(stop.stopped)
	}
	s := g.Estate.Service("", g.WithQueue, func(c *service.Config) { c.Logger = slog.New(stop) })
	r := g.Running(jobqueue.DestroyGroup{GroupID: 10, UserID: new(int64(1))})
	r.Stopping = stop.stopped
	return func() (job.Result, error) { return servicetest.Attempt(s, r) }
}

func TestDestroyGroup_Attempts(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		attemptWhoseTimeIsOverSnoozesAndTheNextGoesOn, attemptThatIsOutOfTimeSaysSoInItsGroup,
		twoAttemptsNeverOverlap, membersThatSomebodyElseRemovesAtTheSameTimeAreNoError,
		membershipsThatSomebodyElseRemovesAtTheSameTimeHideNoOthers,
		waitsWhileTheJobOfASubgroupRemovesThat, jobsOfAGroupAndOfOneBelowItNeverFailForEachOther,
		failureIsNotedWhereNothingWas, worksWithoutStatesDetailsAndTheOtherStore,
	)
}

func attemptWhoseTimeIsOverSnoozesAndTheNextGoesOn(g *servicetest.Groups) {
	g.Owned(10, 15)
	for p := 1; p < 4; p++ {
		g.Project(p, 10, fmt.Sprintf("p%d", p))
		g.Content(p)
	}
	attempts := 0
	for at := ""; ; at = "path not deleted" {
		r := assert.Must(workJob(g, at))(g.T)
		if attempts++; r.Snooze == 0 {
			assert.That(g.T, r.Outcome == job.Succeeded, "%+v", r)
			break
		}
		g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
		g.WantMarked("10")
		g.WantRows(map[string]int{"maintenance.group_removals": 1})
	}
	// One that did nothing but begin, and at least one for each of the six paths outside the database.
	assert.That(g.T, attempts >= 7, "%d attempts", attempts)
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "notes": 0, "maintenance.group_removals": 0})
	g.WantLog(1, "job finished", "outcome=succeeded", "groups=1", "projects=3")
	g.WantLog(6, "left_outside")
	g.Want("main", `SELECT string_agg(path, ' ' ORDER BY path) FROM maintenance.outside_paths WHERE job_id IS NOT NULL AND done_at IS NULL`,
		"@hashed/1 @hashed/2 @hashed/3 @snippets/1 @snippets/2 @snippets/3")
	g.WantLog(1, "job finished", "worked_seconds=", "tables=", "namespaces:map[deleted:1 updated:0]", "outside=")
}

// passing is a context whose deadline passes when the test closes the channel.
type passing struct {
	context.Context
	passed chan struct{}
}

func (c passing) Done() <-chan struct{} { return c.passed }

func (c passing) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func attemptThatIsOutOfTimeSaysSoInItsGroup(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.MarkDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
	g.Gate("main", "group_deletion_schedules", "true")
	g.Shut("main", servicetest.App)
	request := g.Running(jobqueue.DestroyGroup{GroupID: 10, UserID: new(int64(1))})
	ended := make(chan error, 1)
	work := func(ctx context.Context) {
		_, err := g.Service.WorkJob(ctx, request)
		ended <- err
	}
	deadline := passing{context.Background(), make(chan struct{})}
	go work(deadline)
	g.AtGate("main", servicetest.App)
	close(deadline.passed)
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		g.T.Errorf("got %v, want that its time is over", err)
	}
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, "stopped before completion")
	g.WantMarked("10")
	stopped, stop := context.WithCancel(context.Background())
	go work(stopped)
	g.AtGate("main", servicetest.App)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		g.T.Errorf("got %v, want that it was stopped", err)
	}
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
}

func twoAttemptsNeverOverlap(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Exec("main", `SELECT pg_advisory_lock(10)`)
	r, err := workJob(g, "never")
	assert.That(g.T, err == nil && r.Snooze.Seconds() == 30, "%+v, %v", r, err)
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "0")
	g.Exec("main", `SELECT pg_advisory_unlock(10)`)
	// Another attempt comes between two steps of this one: it stops there, and does not report a failure.
	g.Gate("main", "project_repositories")
	g.Shut("main", servicetest.App)
	done := make(chan job.Result, 1)
	first := attempt(g, "never")
	go func() {
		r, _ := first()
		done <- r
	}()
	g.AtGate("main", servicetest.App)
	if r, err := workJob(g, "never"); err != nil || r.Snooze.Seconds() != 30 {
		g.T.Errorf("%+v, %v", r, err)
	}
	g.Lift("main", servicetest.App)
	if r := <-done; r.Outcome != job.Succeeded {
		g.T.Errorf("%+v", r)
	}
	g.WantRows(map[string]int{"namespaces": 0})
}

// Rows that others remove at the same time.

func membersThatSomebodyElseRemovesAtTheSameTimeAreNoError(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Exec("main", `INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id) VALUES ('Project', 1, 'ProjectMember', 1, 30, 10001)`)
	g.Run("scheduled_jobs=1")
	g.Held(`DELETE FROM members WHERE source_type = 'Project'`, 1)
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0})
	g.Want("main", `SELECT coalesce(array_length(errors, 1), 0) FROM maintenance.river_job WHERE kind = 'destroy_group'`, "0")
}

func membershipsThatSomebodyElseRemovesAtTheSameTimeHideNoOthers(g *servicetest.Groups) {
	e := g.Estate
	e.User(7, 0, 1)
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1000, 2500) i`)
	e.Exec("main", `INSERT INTO members (id, user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT i, 7, i, 'Namespace', 'GroupMember', 30, i FROM generate_series(1000, 2500) i`)
	// A whole page of them, in the order in which they are found.
	e.Held(`DELETE FROM members WHERE id < 2000`, 1)
	servicetest.WantDeletion(e.T, e.Deletion(g.Service, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM members WHERE user_id = 7`, "0")
}

func waitsWhileTheJobOfASubgroupRemovesThat(g *servicetest.Groups) {
	plant(g, "10 owner=1 mark=1@15", "11<10", "12<11")
	g.Project(1, 12, "p")
	g.Content(1)
	g.QueueJob(10, 1)
	ctx := context.Background()
	step := assert.Must(g.Connect("main").Begin(ctx))(g.T)
	// A step of another job that removes the group at the bottom.
	assert.Must(step.Exec(ctx, `SELECT pg_advisory_xact_lock(12)`))(g.T)
	g.Attempt("scheduled")
	g.Want("main", `SELECT concat_ws(' ', attempt, metadata ->> 'snoozes',
		scheduled_at BETWEEN attempted_at + interval '30 s' AND now() + interval '30 s') FROM maintenance.river_job`, "0 1 t")
	g.WantRows(map[string]int{"projects": 1, "members": 2})
	assert.NoError(g.T, step.Commit(ctx))
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0})
}

func jobsOfAGroupAndOfOneBelowItNeverFailForEachOther(g *servicetest.Groups) {
	plant(g, "10 owner=1 mark=1@15", "11<10 mark=1@16")
	for project := 1; project <= 4; project++ {
		g.Project(project, 11, "p"+string(rune('a'+project)))
		g.Content(project)
	}
	g.QueueJob(11, 1)
	g.QueueJob(10, 1)
	for n := 0; g.Value("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'destroy_group' AND state NOT IN ('completed', 'cancelled')`) != "0" && n < 20; n++ {
		g.Work(g.Service, "destroy_group")
	}
	g.Want("main", `SELECT string_agg(concat_ws(' ', state, coalesce(array_length(errors, 1), 0)), ', ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed 0, completed 0")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0, "maintenance.group_removals": 0})
}
