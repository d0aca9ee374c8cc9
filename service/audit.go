package service

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// AuditEntry is a call that was to change something, with who made it and what became of it.
type AuditEntry = repo.AuditEntry

// AuditFilter selects entries.
type AuditFilter = repo.AuditFilter

// RecordAudit adds an entry to the audit. It is kept as long as runs are.
func (s *Service) RecordAudit(ctx context.Context, e AuditEntry) error {
	return s.engine.Main.RecordAudit(ctx, e)
}

// Audit lists the entries, the newest first.
func (s *Service) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	return s.engine.Main.ListAudit(ctx, f)
}
