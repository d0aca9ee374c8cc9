package server

import (
	"context"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// AcceptAbsent accepts that child tables are in no database.
func (m *maintenance) AcceptAbsent(
	ctx context.Context, r *pb.AcceptAbsentRequest,
) (*pb.AcceptAbsentResponse, error) {
	done, err := m.service.AcceptAbsent(ctx, r.GetChildren(), caller(ctx))
	if err != nil {
		return nil, err
	}
	response := &pb.AcceptAbsentResponse{}
	for _, c := range done {
		response.Children = append(response.Children, &pb.AcceptedChild{
			Child: c.Child, Definitions: c.Definitions, AcceptedBefore: c.Before, Databases: c.Databases,
		})
	}
	return response, nil
}
