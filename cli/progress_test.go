package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// answering is a server that says of every worker the same.
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
	t.Parallel()
	server, out := &answering{status: due(100)}, &strings.Builder{}
	each := (&app{Streams: Streams{Err: out}}).progress(t.Context(), server)
	if err := each(&pb.RunEvent{Run: working(ghosts, nil), Sequence: 1}); err != nil || strings.Contains(out.String(), "%") {
		t.Errorf("%v: %s", err, out)
	}
	each = (&app{Streams: Streams{Err: out}}).progress(t.Context(), server)
	for n := range int64(2) {
		run := working(ghosts, map[string]int64{"migrated_users": 24 * n, "deferred_users": n, "moved_rows": 7})
		assert.NoError(t, each(&pb.RunEvent{Run: run, Sequence: 2}))
	}
	assert.Contains(t, out.String(), "ghost_user_migration 1m0s  moved rows 7")
	for users, want := range map[int64]string{
		25: "25 % of what was due, about 3 min left", 50: "50 % of what was due, about 60 s left", 95: "95 % of what was due, a few seconds left",
		100: "99 % of what was due, a few seconds left", 101: "", 0: "",
	} {
		got := progressText(working(ghosts, map[string]int64{"migrated_users": users}), 100)
		if want == "" && strings.Contains(got, "%") || !strings.Contains(got, want) {
			t.Errorf("%d of 100: %q, want %q", users, got, want)
		}
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
	assert.Lacks(t, progressText(working(ghosts, map[string]int64{"migrated_users": 3}), 0), "%")
}
