package server

import (
	"context"
	"slices"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// maintenance is MaintenanceService. Its handlers validate, call, convert.
type maintenance struct {
	pb.UnimplementedMaintenanceServiceServer
	service *service.Service
}

// RunBatch starts a run and, unless async, waits for its end.
func (m *maintenance) RunBatch(ctx context.Context, r *pb.RunBatchRequest) (*pb.RunBatchResponse, error) {
	err := firstOf(required("worker", r.GetWorker()), plain("database", r.GetDatabase()), plain("request_id", r.GetRequestId()))
	if err != nil {
		return nil, err
	}
	logging.AddFields(ctx, logging.Fields{"worker", r.GetWorker(), "database", r.GetDatabase(), "request_id", r.GetRequestId()})
	run, err := m.service.RunBatch(ctx, service.RunRequest{
		Worker: r.GetWorker(), Database: r.GetDatabase(), DryRun: r.GetDryRun(), Async: r.GetAsync(),
		RequestID: r.GetRequestId(), RequestedBy: caller(ctx),
	})
	if err != nil {
		return nil, err
	}
	logging.AddFields(ctx, logging.Fields{"run_id", run.ID, "outcome", run.State})
	return &pb.RunBatchResponse{Run: wholeRun(&run)}, nil
}

// GetStatus tells where workers stand.
func (m *maintenance) GetStatus(ctx context.Context, r *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	workers, err := m.service.Status(ctx, r.GetWorker())
	if err != nil {
		return nil, err
	}
	response := &pb.GetStatusResponse{}
	for _, w := range workers {
		response.Workers = append(response.Workers, toStatus(w))
	}
	return response, nil
}

// ListLeases pages through the leases by name.
func (m *maintenance) ListLeases(ctx context.Context, r *pb.ListLeasesRequest) (*pb.ListLeasesResponse, error) {
	p, err := newPage("leases", r.GetPageSize(), r.GetPageToken(), r.GetWorker())
	if err != nil {
		return nil, err
	}
	leases, err := m.service.Leases(ctx, r.GetWorker())
	if err != nil {
		return nil, err
	}
	behind := slices.IndexFunc(leases, func(l service.Lease) bool { return l.Name > p.after })
	if behind < 0 {
		behind = len(leases)
	}
	response := &pb.ListLeasesResponse{}
	response.Leases, response.NextPageToken = fill(p, leases[behind:], toLease, func(l *service.Lease) string { return l.Name })
	return response, nil
}

// GetRun returns a run.
func (m *maintenance) GetRun(ctx context.Context, r *pb.GetRunRequest) (*pb.GetRunResponse, error) {
	run, err := m.service.Run(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &pb.GetRunResponse{Run: wholeRun(&run)}, nil
}

// ListRuns pages through the runs, the newest first.
func (m *maintenance) ListRuns(ctx context.Context, r *pb.ListRunsRequest) (*pb.ListRunsResponse, error) {
	state, err := fromState(r.GetState())
	if err != nil {
		return nil, err
	}
	p, err := newPage("runs", r.GetPageSize(), r.GetPageToken(), r.GetWorker(), state)
	if err != nil {
		return nil, err
	}
	runs, err := m.service.Runs(ctx, service.RunFilter{Worker: r.GetWorker(), State: state, After: p.after, Limit: p.size + 1})
	if err != nil {
		return nil, err
	}
	response := &pb.ListRunsResponse{}
	response.Runs, response.NextPageToken = fill(p, runs, listedRun, func(r *service.Run) string { return r.ID })
	return response, nil
}

// WatchRun sends a run whenever it changes, until it has ended.
func (m *maintenance) WatchRun(r *pb.WatchRunRequest, stream grpc.ServerStreamingServer[pb.RunEvent]) error {
	sequence := int64(0)
	return m.service.WatchRun(stream.Context(), r.GetId(), func(run service.Run) error {
		sequence++
		return stream.Send(&pb.RunEvent{Run: wholeRun(&run), Sequence: sequence})
	})
}

// CancelRun asks a run to stop.
func (m *maintenance) CancelRun(ctx context.Context, r *pb.CancelRunRequest) (*pb.CancelRunResponse, error) {
	run, err := m.service.CancelRun(ctx, r.GetId(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.CancelRunResponse{Run: wholeRun(&run)}, nil
}
