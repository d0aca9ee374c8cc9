package server

import (
	"cmp"
	"context"
	"strconv"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/control"
)

// ListAudit pages through the audit entries, the newest first.
func (m *maintenance) ListAudit(
	ctx context.Context, r *pb.ListAuditRequest,
) (*pb.ListAuditResponse, error) {
	since, until, err := bounds(r)
	for field, text := range map[string]string{"by": r.GetBy(), "action": r.GetAction()} {
		err = cmp.Or(err, printable(field, text))
	}
	if err != nil {
		return nil, err
	}
	p, err := newPage("audit", r, append(times(r), r.GetBy(), r.GetAction())...)
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
		Since: since, Until: until, By: r.GetBy(), Action: r.GetAction(), After: after, AfterID: id, Limit: p.size + 1,
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
