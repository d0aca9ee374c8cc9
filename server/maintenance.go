package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// maintenance implements MaintenanceService. Its handlers validate, call package service, and
// convert. Package service itself validates worker names, run IDs and lengths.
type maintenance struct {
	pb.UnimplementedMaintenanceServiceServer
	service *service.Service
}

// RunBatch starts a run and, unless async, waits for its end.
func (m *maintenance) RunBatch(
	ctx context.Context, r *pb.RunBatchRequest,
) (*pb.RunBatchResponse, error) {
	err := cmp.Or(required("worker", r.GetWorker()), printable("database", r.GetDatabase()),
		printable("request_id", r.GetRequestId()))
	if err != nil {
		return nil, err
	}
	logging.AddFields(ctx, logging.Fields{
		"worker", r.GetWorker(), "database", r.GetDatabase(), "request_id", r.GetRequestId(),
	})
	run, err := m.service.RunBatch(ctx, run.Request{
		Worker: r.GetWorker(), Database: r.GetDatabase(), DryRun: r.GetDryRun(),
		Async: r.GetAsync(), RequestID: r.GetRequestId(), RequestedBy: caller(ctx),
		ExpectedDigest: r.GetExpectedDigest(),
	})
	if run.ID != "" {
		logging.AddFields(ctx, logging.Fields{"run_id", run.ID, "outcome", run.State})
	}
	// The client gets no run with an error, but the audit records the run.
	return &pb.RunBatchResponse{Run: wholeRun(&run)}, err
}

// GetStatus returns the state of one worker or all workers.
func (m *maintenance) GetStatus(
	ctx context.Context, r *pb.GetStatusRequest,
) (*pb.GetStatusResponse, error) {
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
func (m *maintenance) ListLeases(
	ctx context.Context, r *pb.ListLeasesRequest,
) (*pb.ListLeasesResponse, error) {
	p, err := newPage("leases", r, r.GetWorker())
	if err != nil {
		return nil, err
	}
	leases, err := m.service.Leases(ctx, r.GetWorker())
	if err != nil {
		return nil, err
	}
	leases = slices.DeleteFunc(leases, func(l run.Lease) bool { return l.Name <= p.after })
	response := &pb.ListLeasesResponse{}
	response.Leases, response.NextPageToken = fill(p, leases, toLease,
		func(l *run.Lease) string { return l.Name })
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
func (m *maintenance) ListRuns(
	ctx context.Context, r *pb.ListRunsRequest,
) (*pb.ListRunsResponse, error) {
	state, err := filter("state", statePrefix, r.GetState())
	since, until, boundsErr := bounds(r)
	if err := cmp.Or(err, boundsErr); err != nil {
		return nil, err
	}
	p, err := newPage("runs", r, append([]string{r.GetWorker(), state}, times(r)...)...)
	if err != nil {
		return nil, err
	}
	runs, err := m.service.Runs(ctx, run.Filter{
		Worker: r.GetWorker(), State: state, After: p.after, Limit: p.size + 1,
		Since: since, Until: until,
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListRunsResponse{}
	response.Runs, response.NextPageToken = fill(p, runs, listedRun,
		func(r *run.Run) string { return r.ID })
	return response, nil
}

// ListFires pages through the scheduled runs, the newest first.
func (m *maintenance) ListFires(
	ctx context.Context, r *pb.ListFiresRequest,
) (*pb.ListFiresResponse, error) {
	outcome, err := filter("outcome", outcomePrefix, r.GetOutcome())
	if err != nil {
		return nil, err
	}
	p, err := newPage("fires", r, r.GetWorker(), outcome)
	if err != nil {
		return nil, err
	}
	after, afterWorker, err := p.afterTime()
	if err != nil {
		return nil, err
	}
	fires, err := m.service.Fires(ctx, schedule.Filter{
		Worker: r.GetWorker(), Outcome: outcome, After: after, AfterWorker: afterWorker,
		Limit: p.size + 1,
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListFiresResponse{}
	response.Fires, response.NextPageToken = fill(p, fires, toFire, fireKey)
	return response, nil
}

// WatchRun sends a run whenever it changes, until it ends.
func (m *maintenance) WatchRun(
	r *pb.WatchRunRequest, stream grpc.ServerStreamingServer[pb.RunEvent],
) error {
	sequence := int64(0)
	return m.service.WatchRun(stream.Context(), r.GetId(), func(run run.Run) error {
		sequence++
		return stream.Send(&pb.RunEvent{Run: wholeRun(&run), Sequence: sequence})
	})
}

// CancelRun asks a run to stop.
func (m *maintenance) CancelRun(
	ctx context.Context, r *pb.CancelRunRequest,
) (*pb.CancelRunResponse, error) {
	run, err := m.service.CancelRun(ctx, r.GetId(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.CancelRunResponse{Run: wholeRun(&run)}, nil
}

// PauseWorker pauses a worker on every server.
func (m *maintenance) PauseWorker(
	ctx context.Context, r *pb.PauseWorkerRequest,
) (*pb.PauseWorkerResponse, error) {
	ttl, err := fromTTL(r.GetTtl(), service.AllowedTTL)
	err = cmp.Or(required("worker", r.GetWorker()), required("reason", r.GetReason()), err)
	if err != nil {
		return nil, err
	}
	worker, err := m.service.PauseWorker(ctx, r.GetWorker(), r.GetReason(), caller(ctx), ttl)
	if err != nil {
		return nil, err
	}
	return &pb.PauseWorkerResponse{Worker: toStatus(worker)}, nil
}

// ResumeWorker ends a pause.
func (m *maintenance) ResumeWorker(
	ctx context.Context, r *pb.ResumeWorkerRequest,
) (*pb.ResumeWorkerResponse, error) {
	if err := required("worker", r.GetWorker()); err != nil {
		return nil, err
	}
	worker, err := m.service.ResumeWorker(ctx, r.GetWorker(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.ResumeWorkerResponse{Worker: toStatus(worker)}, nil
}

// ListJobs pages through the deferred jobs, the newest first, or returns the job with an ID.
func (m *maintenance) ListJobs(
	ctx context.Context, r *pb.ListJobsRequest,
) (*pb.ListJobsResponse, error) {
	state, err := jobState(r)
	since, until, boundsErr := bounds(r)
	if err := cmp.Or(err, boundsErr); err != nil {
		return nil, err
	}
	p, err := newPage("jobs", r, append([]string{r.GetKind(), state}, times(r)...)...)
	if err != nil {
		return nil, err
	}
	after, err := p.afterNumber()
	if err != nil {
		return nil, err
	}
	response := &pb.ListJobsResponse{}
	if r.GetId() != 0 {
		job, err := m.service.Job(ctx, r.GetId())
		if err != nil {
			return nil, err
		}
		response.Jobs = []*pb.Job{wholeJob(&job)}
		return response, nil
	}
	jobs, err := m.service.Jobs(ctx, job.Filter{
		Kind: r.GetKind(), State: state, After: after, Limit: p.size + 1,
		Since: since, Until: until,
	})
	if err != nil {
		return nil, err
	}
	response.Jobs, response.NextPageToken = fill(p, jobs, listedJob,
		func(j *job.Job) string { return strconv.FormatInt(j.ID, 10) })
	return response, nil
}

// GetJob returns a job.
func (m *maintenance) GetJob(ctx context.Context, r *pb.GetJobRequest) (*pb.GetJobResponse, error) {
	job, err := m.service.Job(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &pb.GetJobResponse{Job: wholeJob(&job)}, nil
}

// CancelJob stops a job.
func (m *maintenance) CancelJob(
	ctx context.Context, r *pb.CancelJobRequest,
) (*pb.CancelJobResponse, error) {
	if err := required("reason", r.GetReason()); err != nil {
		return nil, err
	}
	job, err := m.service.CancelJob(ctx, r.GetId(), r.GetReason(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.CancelJobResponse{Job: wholeJob(&job)}, nil
}

// RetryJob makes a job due now.
func (m *maintenance) RetryJob(
	ctx context.Context, r *pb.RetryJobRequest,
) (*pb.RetryJobResponse, error) {
	job, err := m.service.RetryJob(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &pb.RetryJobResponse{Job: wholeJob(&job)}, nil
}

// SetFeatureFlag switches a flag.
func (m *maintenance) SetFeatureFlag(
	ctx context.Context, r *pb.SetFeatureFlagRequest,
) (*pb.SetFeatureFlagResponse, error) {
	if err := required("name", r.GetName()); err != nil {
		return nil, err
	}
	if err := m.service.SetFeatureFlag(ctx, r.GetName(), r.GetEnabled()); err != nil {
		return nil, err
	}
	flag := &pb.FeatureFlag{Name: r.GetName(), Enabled: r.GetEnabled()}
	return &pb.SetFeatureFlagResponse{Flag: flag}, nil
}

// ListFeatureFlags pages through the flags by name.
func (m *maintenance) ListFeatureFlags(
	ctx context.Context, r *pb.ListFeatureFlagsRequest,
) (*pb.ListFeatureFlagsResponse, error) {
	p, err := newPage("flags", r)
	if err != nil {
		return nil, err
	}
	known, err := m.service.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	var flags []*pb.FeatureFlag
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if name > p.after {
			flags = append(flags, &pb.FeatureFlag{Name: name, Enabled: known[name]})
		}
	}
	response := &pb.ListFeatureFlagsResponse{}
	response.Flags, response.NextPageToken = fill(p, flags,
		func(f **pb.FeatureFlag) *pb.FeatureFlag { return *f },
		func(f **pb.FeatureFlag) string { return (*f).GetName() })
	return response, nil
}
