package cli

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
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
		{Id: "mine", Database: "main", Trigger: byRequest},
	}
	for _, c := range []struct {
		dry  bool
		want []string
	}{{false, []string{"mine"}}, {true, nil}} {
		server := &looking{t: t, runs: runs}
		a := &app{Streams: Streams{Out: io.Discard, Err: io.Discard}}
		err := a.runAndWatch(t.Context(), server, &pb.RunBatchRequest{Worker: "w", Database: "main", DryRun: c.dry})
		if err == nil || !strings.Contains(err.Error(), "caretaker runs w shows") || !slices.Equal(server.cancelled, c.want) {
			t.Errorf("dry run %t: cancelled %v, %v", c.dry, server.cancelled, err)
		}
	}
}
