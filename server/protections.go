package server

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// ProtectTarget prevents the deletion of a user or group.
func (m *maintenance) ProtectTarget(
	ctx context.Context, r *pb.ProtectTargetRequest,
) (*pb.ProtectTargetResponse, error) {
	ttl, err := fromTTL(r.GetTtl(), service.AllowedProtection)
	err = cmp.Or(required("kind", r.GetKind()), required("reason", r.GetReason()), err)
	if err != nil {
		return nil, err
	}
	wanted := service.Protection{
		Kind: r.GetKind(), ID: r.GetId(), Reason: r.GetReason(), By: caller(ctx),
	}
	protected, err := m.service.Protect(ctx, wanted, ttl, r.GetMustExist())
	if err != nil {
		return nil, err
	}
	return &pb.ProtectTargetResponse{Protection: toProtection(&protected)}, nil
}

// UnprotectTarget ends a protection.
func (m *maintenance) UnprotectTarget(
	ctx context.Context, r *pb.UnprotectTargetRequest,
) (*pb.UnprotectTargetResponse, error) {
	if err := required("kind", r.GetKind()); err != nil {
		return nil, err
	}
	ended, err := m.service.Unprotect(ctx, r.GetKind(), r.GetId(), caller(ctx))
	if err != nil {
		return nil, err
	}
	return &pb.UnprotectTargetResponse{Protection: toProtection(&ended)}, nil
}

// ListProtected pages through the protections by kind and id.
func (m *maintenance) ListProtected(
	ctx context.Context, r *pb.ListProtectedRequest,
) (*pb.ListProtectedResponse, error) {
	if err := printable("kind", r.GetKind()); err != nil {
		return nil, err
	}
	p, err := newPage("protected", r, r.GetKind())
	if err != nil {
		return nil, err
	}
	var after service.Protection
	if p.after != "" {
		kind, id, _ := strings.Cut(p.after, " ")
		after.Kind = kind
		if after.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, errForeignToken()
		}
	}
	found, err := m.service.Protections(ctx, r.GetKind(), after, p.size+1)
	if err != nil {
		return nil, err
	}
	response := &pb.ListProtectedResponse{}
	response.Protections, response.NextPageToken = fill(p, found, toProtection,
		func(p *service.Protection) string { return p.Kind + " " + strconv.FormatInt(p.ID, 10) })
	return response, nil
}

// toProtection converts a protection. until is missing if the protection does not end by itself.
func toProtection(p *service.Protection) *pb.Protection {
	return &pb.Protection{
		Kind: p.Kind, Id: p.ID, Reason: p.Reason, By: p.By,
		Since: toTime(p.Since), Until: toTime(p.Until),
	}
}
