package server

import (
	"context"
	"strconv"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// ListOutside pages through the paths that deleted rows left outside the database, the oldest
// first.
func (m *maintenance) ListOutside(
	ctx context.Context, r *pb.ListOutsideRequest,
) (*pb.ListOutsideResponse, error) {
	run, err := m.runOf(ctx, r)
	if err != nil {
		return nil, err
	}
	if run != "" && r.GetJobId() != 0 {
		return nil, invalid("run_id", "set run_id or job_id, not both")
	}
	if r.GetJobId() < 0 {
		return nil, invalid("job_id", "is not the id of a job")
	}
	p, err := newPage("outside", r, strconv.FormatInt(r.GetJobId(), 10), r.GetRunId(),
		strconv.FormatBool(r.GetPendingOnly()))
	if err != nil {
		return nil, err
	}
	after, err := p.afterNumber()
	if err != nil {
		return nil, err
	}
	paths, err := m.service.Main.Outside.ListOutside(ctx, rowset.OutsideFilter{
		JobID: r.GetJobId(), RunID: run, Pending: r.GetPendingOnly(),
		After: after, Limit: p.size + 1,
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListOutsideResponse{}
	response.Paths, response.NextPageToken = fill(p, paths, toOutsidePath,
		func(o *rowset.OutsidePath) string { return strconv.FormatInt(o.ID, 10) })
	return response, nil
}

// AckOutside marks paths from ListOutside as done.
func (m *maintenance) AckOutside(
	ctx context.Context, r *pb.AckOutsideRequest,
) (*pb.AckOutsideResponse, error) {
	done, err := m.service.AckOutside(ctx, r.GetIds(), caller(ctx))
	if err != nil {
		return nil, err
	}
	response := &pb.AckOutsideResponse{}
	for i := range done {
		response.Paths = append(response.Paths, toOutsidePath(&done[i]))
	}
	return response, nil
}

// toOutsidePath converts a path outside the database. It has a job or a run, and DoneAt is missing
// until it is marked as done.
func toOutsidePath(o *rowset.OutsidePath) *pb.OutsidePath {
	return &pb.OutsidePath{
		Id: o.ID, JobId: o.JobID, RunId: o.RunID, Path: o.Path, Kind: o.Kind,
		CreatedAt: toTime(o.At), DoneAt: toTime(o.DoneAt), DoneBy: o.DoneBy,
	}
}
