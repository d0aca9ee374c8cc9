package server

import (
	"context"
	"strconv"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/control"
)

// ListAudit pages through the audit entries, the newest first.
func (m *maintenance) ListAudit(
	ctx context.Context, r *pb.ListAuditRequest,
) (*pb.ListAuditResponse, error) {
	since, err := fromTime("since", r.GetSince())
	if err != nil {
		return nil, err
	}
	p, err := newPage("audit", r, since.Format(time.RFC3339Nano))
	if err != nil {
		return nil, err
	}
	after, key, err := p.afterTime()
	if err != nil {
		return nil, err
	}
	id, err := strconv.ParseInt(key, 10, 64)
	if err != nil && key != "" {
		return nil, errForeignToken()
	}
	entries, err := m.service.Main.Audit.ListAudit(ctx, control.AuditFilter{
		Since: since, After: after, AfterID: id, Limit: p.size + 1,
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListAuditResponse{}
	response.Entries, response.NextPageToken = fill(p, entries, toAuditEntry, auditKey)
	return response, nil
}

// toAuditEntry converts an entry of the audit log, with all its fields.
func toAuditEntry(e *control.AuditEntry) *pb.AuditEntry {
	return &pb.AuditEntry{
		At: toTime(e.At), By: e.By, Address: e.Address, Role: e.Role,
		Action: e.Action, Target: e.Target, Reason: e.Reason, Outcome: e.Outcome,
	}
}
