package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// looking is a server that still looks at the candidates of a run when somebody presses Ctrl-C.
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
		a := &app{Streams: Streams{Out: io.Discard, Err: io.Discard}}
		err := a.runAndWatch(t.Context(), server, &pb.RunBatchRequest{Worker: "w", Database: "main", DryRun: c.dry, RequestId: fmt.Sprint("request ", c.dry)})
		if err == nil || !strings.Contains(err.Error(), "caretaker runs w shows") || !slices.Equal(server.cancelled, c.want) {
			t.Errorf("dry run %t: cancelled %v, %v", c.dry, server.cancelled, err)
		}
	}
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
	t.Parallel()
	for _, c := range []struct {
		worker, digest string
		says           bool
	}{{"ghost_user_migration", "", true}, {"ghost_user_migration", "d", false}, {"loose_foreign_keys_cleanup", "", false}} {
		server := &planning{run: &pb.Run{Candidates: []*pb.Candidate{{Kind: "user", Id: 1}}, Worker: c.worker, State: pb.RunState_RUN_STATE_SUCCEEDED, DryRun: true, CandidatesDigest: c.digest}}
		var out strings.Builder
		a := &app{Streams: Streams{In: strings.NewReader("yes\n"), Out: &out, Err: &out}}
		request := &pb.RunBatchRequest{Worker: c.worker}
		if _, _, err := a.confirm(t.Context(), server, request); err != nil || request.GetExpectedDigest() != c.digest {
			t.Errorf("%+v: %v, %v", c, err, request)
		}
		assert.Equal(t, strings.Contains(out.String(), "the run may do more than is shown\nrun "+c.worker+" now"), c.says, c, out.String())
	}
}

func TestShow_NamesHaveNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		a := &app{Streams: Streams{Out: &out}, asJSON: asJSON}
		plan := &pb.Plan{Name: "a\x1b[7m\u202eb\u2066c\n", Tables: []*pb.PlannedTable{{Table: "t\u202e"}}, Jobs: []string{"j\x9b"}}
		assert.NoError(t, a.show(&pb.PlanDeletionResponse{Plan: plan}, func() error { return a.describePlan(plan) }))
		assert.Contains(t, out.String(), "a [7m b c ")
		for _, bad := range []string{"\x1b", `\u001b`, "\u202e", "\u2066", `c\n`, "\u009b"} {
			assert.Lacks(t, out.String(), bad)
		}
	}
}
