package server

import (
	"context"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// PlanDeletion returns the effects of a deletion without deleting.
func (m *maintenance) PlanDeletion(
	ctx context.Context, r *pb.PlanDeletionRequest,
) (*pb.PlanDeletionResponse, error) {
	if err := required("kind", r.GetKind()); err != nil {
		return nil, err
	}
	logging.AddFields(ctx, logging.Fields{"kind", r.GetKind(), "id", r.GetId()})
	p, err := m.service.PlanDeletion(ctx, r.GetKind(), r.GetId())
	if err != nil {
		return nil, err
	}
	return &pb.PlanDeletionResponse{Plan: toPlan(p)}, nil
}

// toPlan converts a plan. refused is missing if the target would be deleted, estimate if it is
// unknown.
func toPlan(p *plan.Plan) *pb.Plan {
	plan := &pb.Plan{
		Kind: p.Kind, Id: p.ID, Name: p.Name, Digest: p.Digest, Exact: p.Exact, Jobs: p.Jobs,
		Outside: p.Outside, Remarks: p.Remarks,
	}
	for _, t := range p.Tables {
		plan.Tables = append(plan.Tables, &pb.PlannedTable{
			Table: t.Table, Moved: t.Moved, Nullified: t.Nullified, Deleted: t.Deleted, Kept: t.Kept,
			AtLeast: t.AtLeast,
		})
	}
	if p.Refused != nil {
		plan.Refused = &pb.Refusal{Reason: p.Refused.Reason, Detail: p.Refused.Detail}
	}
	if p.Estimate > 0 {
		plan.Estimate = durationpb.New(p.Estimate)
	}
	return plan
}
