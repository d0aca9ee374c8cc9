package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// answering is a server that reports of every worker the same.
type answering struct {
	api
	status *pb.WorkerStatus
	err    error
	asked  int
}

func (s *answering) GetStatus(context.Context, *pb.GetStatusRequest, ...grpc.CallOption) (*pb.GetStatusResponse, error) {
	s.asked++
	return &pb.GetStatusResponse{Workers: []*pb.WorkerStatus{s.status}}, s.err
}

const ghosts = "ghost_user_migration"

func working(worker string, counts map[string]int64) *pb.Run {
	return &pb.Run{Worker: worker, State: pb.RunState_RUN_STATE_RUNNING, StartedAt: timestamppb.New(time.Now().Add(-60 * time.Second)), Counts: counts}
}

func due(n int64) *pb.WorkerStatus { return &pb.WorkerStatus{Backlog: &pb.Backlog{Due: n}} }

func TestProgress_SaysPercentAndTimeLeftWhereTheBacklogIsKnown(t *testing.T) {
	server, out := &answering{status: due(100)}, &strings.Builder{}
	each := progress(t.Context(), server, &terminal{std: Streams{Err: out}})
	if err := each(&pb.RunEvent{Run: working(ghosts, nil), Sequence: 1}); err != nil || strings.Contains(out.String(), "%") {
		t.Errorf("%v: %s", err, out)
	}
	each = progress(t.Context(), server, &terminal{std: Streams{Err: out}})
	for n := range int64(2) {
		run := working(ghosts, map[string]int64{"migrated_users": 24 * n, "deferred_users": n, "moved_rows": 7})
		assert.NoError(t, each(&pb.RunEvent{Run: run, Sequence: 2}))
	}
	assert.Contains(t, out.String(), "ghost_user_migration 1m0s  7 rows moved")
	for users, want := range map[int64]string{
		25: "25% of the due work, about 3 min left", 50: "50% of the due work, about 60 s left", 95: "95% of the due work, a few seconds left",
		100: "99% of the due work, a few seconds left", 101: "", 0: "",
	} {
		got := progressText(working(ghosts, map[string]int64{"migrated_users": users}), 100)
		assert.That(t, (want != "" || !strings.Contains(got, "%")) && strings.Contains(got, want),
			"%d of 100: %q, want %q", users, got, want)
	}
	if server.asked != 2 { // once for each run
		t.Errorf("the server was asked %d times", server.asked)
	}
	assert.Equal(t, bar(3, 50), "[==========          ]", "the bar")
	assert.Equal(t, bar(3, 0), "[   =                ]", "the bar")
}

func TestProgress_SaysNothingOfABacklogThatIsNotKnown(t *testing.T) {
	t.Parallel()
	dry := working(ghosts, nil)
	dry.DryRun = true
	several := due(7)
	several.Leases = []*pb.Lease{{Database: "main"}, {Database: "ci"}}
	for what, c := range map[string]struct {
		run    *pb.Run
		server *answering
		want   int64
	}{
		"known":             {working(ghosts, nil), &answering{status: due(7)}, 7},
		"begun before":      {working(ghosts, map[string]int64{"migrated_users": 3}), &answering{status: due(7)}, 10},
		"nothing due":       {working(ghosts, nil), &answering{status: due(0)}, 0},
		"no figure":         {working(ghosts, nil), &answering{status: &pb.WorkerStatus{}}, 0},
		"counted no longer": {working(ghosts, nil), &answering{status: due(countedDue)}, 0},
		"no answer":         {working(ghosts, nil), &answering{err: errors.New("down")}, 0},
		"dry run":           {dry, &answering{status: due(7)}, 0},
		"several databases": {working("loose_foreign_keys_cleanup", nil), &answering{status: several}, 0},
		"other worker":      {working("authentication_event_cleanup", nil), &answering{status: due(7)}, 0},
	} {
		assert.Equal(t, dueFor(t.Context(), c.server, c.run), c.want, what)
	}
	dry.Reason = "a\x1b[2J"
	assert.Lacks(t, progressText(dry, 0), "\x1b")
	assert.Lacks(t, progressText(working(ghosts, map[string]int64{"migrated_users": 3}), 0), "%")
}

// looking is a server that still checks the candidates of a run when the operator presses Ctrl-C.
type looking struct {
	api
	t         *testing.T
	runs      []*pb.Run
	cancelled []string
}

func (l *looking) RunBatch(ctx context.Context, _ *pb.RunBatchRequest, _ ...grpc.CallOption) (*pb.RunBatchResponse, error) {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(os.Interrupt)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (l *looking) ListRuns(context.Context, *pb.ListRunsRequest, ...grpc.CallOption) (*pb.ListRunsResponse, error) {
	return &pb.ListRunsResponse{Runs: l.runs}, nil
}

func (l *looking) CancelRun(_ context.Context, r *pb.CancelRunRequest, _ ...grpc.CallOption) (*pb.CancelRunResponse, error) {
	l.cancelled = append(l.cancelled, r.GetId())
	return &pb.CancelRunResponse{}, nil
}

func TestRun_InterruptCancelsARunThatStillLooksAtItsCandidates(t *testing.T) {
	const byRequest, scheduled = pb.Trigger_TRIGGER_REQUEST, pb.Trigger_TRIGGER_SCHEDULE
	runs := []*pb.Run{
		{Id: "dry", Database: "main", Trigger: byRequest, DryRun: true},
		{Id: "scheduled", Database: "main", Trigger: scheduled},
		{Id: "elsewhere", Database: "ci", Trigger: byRequest},
		{Id: "another's", Database: "main", Trigger: byRequest},
		{Id: "another's too", Database: "main", Trigger: byRequest, RequestId: "theirs"},
		{Id: "mine", Database: "main", Trigger: byRequest, RequestId: "request false"},
	}
	for _, c := range []struct {
		dry  bool
		want []string
	}{{false, []string{"mine"}}, {true, nil}} {
		server := &looking{t: t, runs: runs}
		a := newApp(Streams{Out: io.Discard, Err: io.Discard})
		err := runAndWatch(t.Context(), a, server, &pb.RunBatchRequest{Worker: "w", Database: "main", DryRun: c.dry, RequestId: fmt.Sprint("request ", c.dry)})
		if err == nil || !strings.Contains(err.Error(), "run `caretaker runs w` to see") || !slices.Equal(server.cancelled, c.want) {
			t.Errorf("dry run %t: cancelled %v, %v", c.dry, server.cancelled, err)
		}
	}
}

// dying is a server whose connection ends while it runs a worker.
type dying struct {
	planning
}

func (d *dying) WatchRun(context.Context, *pb.WatchRunRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[pb.RunEvent], error) {
	return d, nil
}

func (d *dying) Recv() (*pb.RunEvent, error) {
	if event, err := d.planning.Recv(); err == nil {
		return event, nil
	}
	return nil, status.Error(codes.Unavailable, "connection error: EOF")
}

func TestRun_ALostConnectionSaysHowToGoOn(t *testing.T) {
	server := &dying{planning{run: working("w", nil)}}
	server.run.Id = "01a1"
	a := newApp(Streams{Out: io.Discard, Err: io.Discard})
	a.client.address = "localhost:1"
	err := runAndWatch(t.Context(), a, server, &pb.RunBatchRequest{Worker: "w"})
	assert.Equal(t, fmt.Sprint(err), "the connection to localhost:1 ended during run 01a1: "+
		"once the server answers, "+
		"run `caretaker watch 01a1` to follow the run")
	a.client.name.Store(new(string))
	assert.Contains(t, a.client.explain(status.Error(codes.Unavailable, "connection error: EOF")).Error(), "was lost during the call")
}

// planning is a server whose dry run has ended.
type planning struct {
	api
	grpc.ServerStreamingClient[pb.RunEvent]
	run  *pb.Run
	sent bool
}

func (p *planning) RunBatch(context.Context, *pb.RunBatchRequest, ...grpc.CallOption) (*pb.RunBatchResponse, error) {
	return &pb.RunBatchResponse{Run: p.run}, nil
}

func (p *planning) WatchRun(context.Context, *pb.WatchRunRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[pb.RunEvent], error) {
	return p, nil
}

func (p *planning) Recv() (*pb.RunEvent, error) {
	if p.sent {
		return nil, io.EOF
	}
	p.sent = true
	return &pb.RunEvent{Run: p.run}, nil
}

func TestRun_TheQuestionSaysWhenNotAllCouldBeLookedAt(t *testing.T) {
	for _, c := range []struct {
		worker, digest string
		says           bool
	}{{"ghost_user_migration", "", true}, {"ghost_user_migration", "d", false}, {"loose_foreign_keys_cleanup", "", false}} {
		server := &planning{run: &pb.Run{Candidates: []*pb.Candidate{{Kind: "user", Id: 1}}, Worker: c.worker, State: pb.RunState_RUN_STATE_SUCCEEDED, DryRun: true, CandidatesDigest: c.digest}}
		var out strings.Builder
		a := newApp(Streams{In: strings.NewReader("yes\n"), Out: &out, Err: &out})
		request := &pb.RunBatchRequest{Worker: c.worker}
		if _, _, err := confirm(t.Context(), a, server, request); err != nil || request.GetExpectedDigest() != c.digest {
			t.Errorf("%+v: %v, %v", c, err, request)
		}
		assert.Equal(t, strings.Contains(out.String(), "the run may do more than is shown\nrun "+c.worker+" now"), c.says, c, out.String())
	}
}

func TestShow_NamesHaveNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		a := &terminal{std: Streams{Out: &out}, asJSON: asJSON}
		plan := &pb.Plan{Name: "a\x1b[7m\u202eb\u2066c\n", Tables: []*pb.PlannedTable{{Table: "t\u202e"}}, Jobs: []string{"j\u009b"}}
		assert.NoError(t, a.show(&pb.PlanDeletionResponse{Plan: plan}, func() error { return describePlan(a, plan) }))
		assert.Contains(t, out.String(), "a [7m b c ")
		for _, bad := range []string{"\x1b", `\u001b`, "\u202e", "\u2066", `c\n`, "\u009b"} {
			assert.Lacks(t, out.String(), bad)
		}
	}
}

// manyDatabases is a worker with thirty databases: one is in trouble, twelve have something due.
func manyDatabases() *pb.WorkerStatus {
	w := &pb.WorkerStatus{Worker: "loose_foreign_keys_cleanup", Backlog: &pb.Backlog{}}
	for i := range 30 {
		d := &pb.DatabaseStatus{Database: fmt.Sprintf("shard_%02d", i), Backlog: &pb.Backlog{}}
		switch {
		case i == 0:
			d.Problem, d.Backlog = "database shard_00: unreachable", nil
		case i <= 12:
			d.Backlog.Due = int64(100 * i)
		}
		w.Databases = append(w.Databases, d)
	}
	return w
}

func TestStatus_ManyDatabasesAreOneLineAndEachHasOneIfTheWorkerIsAskedFor(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	a := &terminal{std: Streams{Out: &out, Err: io.Discard}}
	assert.NoError(t, describeWorkers(a, manyDatabases(), &pb.WorkerStatus{Worker: "other"}))
	want := "loose_foreign_keys_cleanup has 30 databases. Failing: shard_00. Due: shard_01 100, shard_02 200, " +
		"shard_03 300, shard_04 400, shard_05 500, shard_06 600, shard_07 700, shard_08 800, shard_09 900, shard_10 1,000 and 2 more. " +
		"To show each database, run `caretaker status loose_foreign_keys_cleanup`"
	got := strings.Join(strings.Fields(out.String()), " ")
	assert.That(t, strings.Contains(got, want) && !strings.Contains(got, "other has"), "got %s", got)
	out.Reset()
	assert.NoError(t, describeWorkers(a, manyDatabases()))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	_, table, _ := strings.Cut(out.String(), "\n\n")
	if !strings.HasPrefix(table, "DATABASE") || len(lines) != 2+1+1+30 || !strings.Contains(table, "database shard_00: unreachable") {
		t.Errorf("got %d lines: %s", len(lines), out.String())
	}
	out.Reset()
	few := manyDatabases()
	few.Databases = few.GetDatabases()[:3]
	if err := describeWorkers(a, few); err != nil || strings.Contains(out.String(), "shard_") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestStatus_MissingRightsAreGrantedNotMigrated(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"c.p_id -> p on main: 42501 insufficient_privilege": "class SCHEMA: run `caretaker doctor " +
			"--grants`, and apply its output",
		"c.p_id -> p on main: 42703 undefined_column": "class SCHEMA: run `caretaker migrate`, or correct",
	} {
		var out strings.Builder
		failing := &pb.Failing{Class: pb.FailureClass_FAILURE_CLASS_SCHEMA, Message: message}
		explainCondition(&terminal{std: Streams{Out: &out, Err: io.Discard}}, &pb.WorkerStatus{Worker: "w", Failing: failing})
		assert.Contains(t, out.String(), want)
	}
}

// receipting is a server with several databases.
type receipting struct{ api }

func (receipting) ListLeases(context.Context, *pb.ListLeasesRequest, ...grpc.CallOption) (*pb.ListLeasesResponse, error) {
	answer := &pb.ListLeasesResponse{}
	for _, name := range []string{"sec", "main", "ci", "main"} {
		answer.Leases = append(answer.Leases, &pb.Lease{Database: name})
	}
	return answer, nil
}

func TestReceipts_NameTheOtherDatabases(t *testing.T) {
	t.Parallel()
	assert.Equal(t, strings.Join(otherDatabases(t.Context(), receipting{}), ", "), "ci, sec")
}
