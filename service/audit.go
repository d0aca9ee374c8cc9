package service

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// AuditEntry is a call that was to change something, with who made it and what became of it.
type AuditEntry = repo.AuditEntry

// AuditFilter selects entries.
type AuditFilter = repo.AuditFilter

// RecordAudit adds an entry to the audit, and returns its ID. It is kept as long as runs are.
func (s *Service) RecordAudit(ctx context.Context, e AuditEntry) (id int64, err error) {
	return s.engine.Main.RecordAudit(ctx, e)
}

// CompleteAudit replaces the reason and the outcome of the entry with this ID.
func (s *Service) CompleteAudit(ctx context.Context, e AuditEntry) error {
	return s.engine.Main.CompleteAudit(ctx, e)
}

// Audit lists the entries, the newest first.
func (s *Service) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	return s.engine.Main.ListAudit(ctx, f)
}
