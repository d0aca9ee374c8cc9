package server

import (
	"context"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// ListJobs pages through the deferred jobs, the newest first.
func (m *maintenance) ListJobs(ctx context.Context, r *pb.ListJobsRequest) (*pb.ListJobsResponse, error) {
	p, err := newPage("jobs", r.GetPageSize(), r.GetPageToken(), r.GetKind(), r.GetState())
	if err != nil {
		return nil, err
	}
	after, err := p.afterNumber()
	if err != nil {
		return nil, err
	}
	if r.GetId() != 0 {
		return m.oneJob(ctx, r.GetId())
	}
	jobs, err := m.service.Jobs(ctx, service.JobFilter{Kind: r.GetKind(), State: r.GetState(), After: after, Limit: p.size + 1})
	if err != nil {
		return nil, err
	}
	response := &pb.ListJobsResponse{}
	response.Jobs, response.NextPageToken = fill(p, jobs, listedJob, func(j *service.Job) string { return strconv.FormatInt(j.ID, 10) })
	return response, nil
}

func (m *maintenance) oneJob(ctx context.Context, id int64) (*pb.ListJobsResponse, error) {
	found, err := m.service.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	return &pb.ListJobsResponse{Jobs: []*pb.Job{wholeJob(&found)}}, nil
}

// RetryJob lets a job be worked now.
func (m *maintenance) RetryJob(ctx context.Context, r *pb.RetryJobRequest) (*pb.RetryJobResponse, error) {
	retried, err := m.service.RetryJob(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &pb.RetryJobResponse{Job: wholeJob(&retried)}, nil
}

// wholeJob is a job with all that a client can take of it, listedJob one among others.
func wholeJob(j *service.Job) *pb.Job {
	return toJob(j, func(text string) string { return run.Shorten(text, wholeText/4, "maintenance.river_job has them") })
}

func listedJob(j *service.Job) *pb.Job {
	return toJob(j, func(text string) string {
		return run.Shorten(text, listText, "ListJobs with its id (caretaker jobs show ID)")
	})
}

func toJob(j *service.Job, short func(string) string) *pb.Job {
	job := &pb.Job{
		Id: j.ID, Kind: j.Kind, State: j.State, Args: &structpb.Struct{},
		Attempt: int32(j.Attempt), MaxAttempts: int32(j.MaxAttempts), //nolint:gosec // PostgreSQL's smallint
		ScheduledAt: toTime(j.ScheduledAt), Reason: short(j.Reason), RunId: j.RunID, Outcome: j.Outcome, TraceId: j.TraceID,
		CreatedAt: toTime(j.CreatedAt), AttemptedAt: toTime(j.AttemptedAt), FinalizedAt: toTime(j.FinalizedAt),
	}
	for _, e := range j.Errors {
		job.Errors = append(job.Errors, &pb.JobError{
			At: toTime(e.At), Attempt: int32(e.Attempt), Error: short(e.Error), //nolint:gosec // PostgreSQL's smallint
		})
	}
	// Not every row was written by caretaker: one whose arguments are no object must not hide the others.
	if job.GetArgs().UnmarshalJSON(j.Args) != nil {
		job.Args = &structpb.Struct{}
	}
	return job
}
