package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// worksGroups makes a process that works removals of groups until it is killed, or does one run of the worker.
func worksGroups(o *processOrder) { o.Definitions, o.Database, o.Jobs = "", "", "destroy_group" }

func runsGroups(o *processOrder) { o.Definitions, o.Database, o.Worker = "", "", groupWorker }

// killed kills a process of which a statement stands before a gate, and waits until the server has noticed.
func (g *groupEstate) killed(p *process) {
	g.t.Helper()
	g.atGate("main", "doomed")
	p.kill()
	g.lift("main", "doomed")
	g.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
}

func TestDestroyGroup_KilledInTheMiddleItIsCompletedWithoutTheMembershipsThatAreGone(t *testing.T) {
	t.Parallel()
	for table, rows := range map[string]string{
		"projects": "true", "members": "OLD.source_type = 'Namespace' AND OLD.source_id = 10", "epics": "OLD.group_id = 10",
		"group_deletion_schedules": "true",
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			g := newGroups(t)
			g.user(2, `user_type = 6`)
			g.owned(10, 15)
			g.group(11, 10, "sub")
			g.project(1, 11, "p")
			g.content(1)
			g.groupContent(10)
			g.groupContent(11)
			g.member(10, 2, 30)
			g.gate("main", table, rows)
			g.shut("main", "doomed")
			g.run("scheduled_jobs=1")
			g.exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
			g.killed(g.start("doomed", "", worksGroups))
			g.want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
			g.wantMarked("10")
			g.wantRows(map[string]int{"maintenance.group_removals": 1})
			if table == "epics" {
				g.want("main", `SELECT count(*) FROM members WHERE source_type = 'Namespace' AND source_id = 10`, "0")
				g.wantBots("2 by 1")
			}
			// The run leaves it to its job, whatever U's rights are now.
			g.exec("main", `UPDATE users SET state = 'banned' WHERE id = 1`)
			g.run("")
			g.exec("main", `UPDATE maintenance.river_job SET state = 'retryable' WHERE kind = 'destroy_group'`)
			g.attempt("completed succeeded")
			g.wantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0, "issues": 0, "epics": 0, "routes": 0, "maintenance.group_removals": 0})
			g.wantBots("2 by 1")
		})
	}
}

func TestAdjournedGroupDeletion_RunThatWasKilledIsRepeatedToTheSameEnd(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 15)
	g.group(11, 0, "a-deletion_scheduled-11")
	g.mark(11, 1, 15)
	g.owned(12, 15)
	g.gate("main", "namespaces", "OLD.id = 11")
	g.shut("main", "doomed")
	g.killed(g.start("doomed", "", runsGroups))
	g.wantMarked("10 11 12")
	g.want("main", `SELECT path FROM routes WHERE source_id = 11`, "a-deletion_scheduled-11")
	g.want("main", `SELECT string_agg(args ->> 'group_id', ' ') FROM maintenance.river_job`, "10")
	g.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	g.run("scheduled_jobs=1 restored_groups=1")
	g.want("main", `SELECT string_agg(args ->> 'group_id', ' ' ORDER BY id) FROM maintenance.river_job`, "10 12")
	g.want("main", `SELECT path FROM routes WHERE source_id = 11`, "a")
}

func TestAdjournedGroupDeletion_TakeOverWaitsForTheRestoreInHand(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	for id := 10; id < 13; id++ {
		g.group(id, 0, fmt.Sprintf("g%d", id))
		g.mark(id, 1, 15)
	}
	g.gate("main", "namespaces", "OLD.id = 11")
	g.shut("main", caretakerApp)
	r, err := g.service.RunBatch(context.Background(), service.RunRequest{Worker: groupWorker, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	g.atGate("main", caretakerApp)
	g.wantMarked("11 12")
	g.exec("main", `SET lock_timeout = '100ms'`)
	if _, err := g.sql["main"].Exec(context.Background(), `UPDATE maintenance.leases SET holder = 'other', epoch = epoch + 1`); err == nil {
		t.Error("the lease was taken over between check and commit")
	}
	g.lift("main", caretakerApp)
	wantState(t, ended(t, g.service, r.ID), "succeeded")
}

func TestAdjournedGroupDeletion_RunThatHasLostItsLeaseChangesNothingMore(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	for id := 10; id < 13; id++ {
		g.group(id, 0, fmt.Sprintf("g%d", id))
		g.mark(id, 1, 15)
	}
	g.owned(13, 15)
	g.exec("main", `CREATE FUNCTION take_over() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE maintenance.leases SET holder = 'other', epoch = epoch + 1; RETURN NULL; END $$`)
	g.exec("main", `CREATE TRIGGER take_over AFTER DELETE ON group_deletion_schedules FOR EACH ROW WHEN (OLD.group_id = 11) EXECUTE FUNCTION take_over()`)
	r, err := g.service.RunBatch(context.Background(), service.RunRequest{Worker: groupWorker})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "failed")
	if r.Reason != "LEASE_LOST" {
		t.Errorf("reason %q", r.Reason)
	}
	wantCounts(t, r, "restored_groups=2")
	g.wantMarked("12 13")
	g.wantJobs()
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

// workJob does an attempt of the removal of group 10 that ends when the log says at ("": at once).
func (g *groupEstate) workJob(at string) (service.JobResult, error) {
	g.t.Helper()
	return g.job(at)()
}

// job is such an attempt, to be done by whatever goroutine.
func (g *groupEstate) job(at string) func() (service.JobResult, error) {
	g.t.Helper()
	stop := stopper{slog.NewTextHandler(&g.log, nil), at, &sync.Once{}, make(chan struct{})}
	if at == "" {
		close(stop.stopped)
	}
	s := g.estate.service("", g.withQueue, func(c *service.Config) { c.Logger = slog.New(stop) })
	r := g.running(repo.DestroyGroup{GroupID: 10, UserID: new(int64(1))})
	r.Stopping = stop.stopped
	return func() (service.JobResult, error) { return s.WorkJob(context.Background(), r) }
}

func TestDestroyGroup_AttemptWhoseTimeIsOverSnoozesAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 15)
	for p := 1; p < 4; p++ {
		g.project(p, 10, fmt.Sprintf("p%d", p))
		g.content(p)
	}
	attempts := 0
	for at := ""; ; at = "left outside" {
		r, err := g.workJob(at)
		if err != nil {
			t.Fatal(err)
		}
		if attempts++; r.Snooze == 0 {
			if r.Outcome != service.JobSucceeded {
				t.Errorf("%+v", r)
			}
			break
		}
		g.want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
		g.wantMarked("10")
		g.wantRows(map[string]int{"maintenance.group_removals": 1})
	}
	// One that did nothing but begin, and at least one for each of the six things left outside.
	if attempts < 7 {
		t.Errorf("%d attempts", attempts)
	}
	g.wantRows(map[string]int{"namespaces": 0, "projects": 0, "notes": 0, "maintenance.group_removals": 0})
	g.wantLog(1, "job finished", "outcome=succeeded", "groups=1", "projects=3")
	g.wantLog(6, "left_outside")
}

func TestDestroyGroup_AttemptThatIsOutOfTimeSaysSoInItsGroup(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 15)
	g.markDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
	g.gate("main", "group_deletion_schedules", "true")
	g.shut("main", caretakerApp)
	request := g.running(repo.DestroyGroup{GroupID: 10, UserID: new(int64(1))})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := g.service.WorkJob(ctx, request); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that its time is over", err)
	}
	g.want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	g.want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, "stopped before its end")
	g.wantMarked("10")
	stopped, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := g.service.WorkJob(stopped, request)
		ended <- err
	}()
	g.atGate("main", caretakerApp)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was stopped", err)
	}
	g.want("main", `SELECT state FROM namespaces WHERE id = 10`, "4")
}

func TestDestroyGroup_TwoAttemptsNeverOverlap(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 15)
	g.project(1, 10, "p")
	g.exec("main", `SELECT pg_advisory_lock(10)`)
	r, err := g.workJob("never")
	if err != nil || r.Snooze.Seconds() != 30 {
		t.Errorf("%+v, %v", r, err)
	}
	g.want("main", `SELECT state FROM namespaces WHERE id = 10`, "0")
	g.exec("main", `SELECT pg_advisory_unlock(10)`)
	// Another attempt comes between two steps of this one: it stops there, and does not report a failure.
	g.gate("main", "project_repositories")
	g.shut("main", caretakerApp)
	done := make(chan service.JobResult, 1)
	first := g.job("never")
	go func() {
		r, _ := first()
		done <- r
	}()
	g.atGate("main", caretakerApp)
	if r, err := g.workJob("never"); err != nil || r.Snooze.Seconds() != 30 {
		t.Errorf("%+v, %v", r, err)
	}
	g.lift("main", caretakerApp)
	if r := <-done; r.Outcome != service.JobSucceeded {
		t.Errorf("%+v", r)
	}
	g.wantRows(map[string]int{"namespaces": 0})
}
