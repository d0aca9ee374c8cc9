package server

import (
	"context"
	"maps"
	"slices"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// PauseWorker pauses a worker on every replica.
func (m *maintenance) PauseWorker(ctx context.Context, r *pb.PauseWorkerRequest) (*pb.PauseWorkerResponse, error) {
	ttl, err := fromTTL(r.GetTtl())
	if err = firstOf(required("worker", r.GetWorker()), required("reason", r.GetReason()), err); err != nil {
		return nil, err
	}
	worker, err := m.service.PauseWorker(ctx, r.GetWorker(), r.GetReason(), caller(ctx), ttl)
	if err != nil {
		return nil, err
	}
	return &pb.PauseWorkerResponse{Worker: toStatus(worker)}, nil
}

// ResumeWorker ends a pause.
func (m *maintenance) ResumeWorker(ctx context.Context, r *pb.ResumeWorkerRequest) (*pb.ResumeWorkerResponse, error) {
	if err := required("worker", r.GetWorker()); err != nil {
		return nil, err
	}
	worker, err := m.service.ResumeWorker(ctx, r.GetWorker(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.ResumeWorkerResponse{Worker: toStatus(worker)}, nil
}

// SetFeatureFlag switches a flag.
func (m *maintenance) SetFeatureFlag(ctx context.Context, r *pb.SetFeatureFlagRequest) (*pb.SetFeatureFlagResponse, error) {
	if err := required("name", r.GetName()); err != nil {
		return nil, err
	}
	if err := m.service.SetFeatureFlag(ctx, r.GetName(), r.GetEnabled()); err != nil {
		return nil, err
	}
	return &pb.SetFeatureFlagResponse{
		Flag: &pb.FeatureFlag{Name: r.GetName(), Enabled: r.GetEnabled()},
	}, nil
}

// ListFeatureFlags lists the flags by name.
func (m *maintenance) ListFeatureFlags(ctx context.Context, _ *pb.ListFeatureFlagsRequest) (*pb.ListFeatureFlagsResponse, error) {
	flags, err := m.service.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	response := &pb.ListFeatureFlagsResponse{}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		response.Flags = append(response.Flags, &pb.FeatureFlag{Name: name, Enabled: flags[name]})
	}
	return response, nil
}
