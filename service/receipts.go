package service

import (
	"context"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
)

// ReceiptsConfig defines what is kept of the rows that were changed.
type ReceiptsConfig struct {
	// KeepKeys keeps the keys of all changed rows in the receipts. If false, a receipt has only a
	// digest of the keys, the lowest key and the highest key.
	KeepKeys bool `key:"keep_keys" default:"false"`
	// Keep is how long receipts are kept.
	Keep time.Duration `key:"keep" default:"8760h" min:"24h" max:"876000h"`
}

// Receipt is the record of one statement that has changed rows of one table.
type Receipt = control.Receipt

// ReceiptFilter selects receipts.
type ReceiptFilter struct {
	// Database contains the receipts. "" means main.
	Database string
	control.ReceiptFilter
}

// Receipts lists receipts of a database, newest first. before selects the next page, 0 the first.
// Errors: [fault.ErrUnknownDatabase], [fault.ErrUnreachable].
func (s *Service) Receipts(
	ctx context.Context, f ReceiptFilter,
) (receipts []Receipt, before int64, err error) {
	all := s.Databases
	i := slices.IndexFunc(all, func(d *repo.Database) bool { return d.Name == f.Database })
	switch {
	case f.Database == "":
		i = 0
	case i < 0:
		return nil, 0, run.UnknownDatabase(f.Database, all)
	}
	return all[i].Receipts.ListReceipts(ctx, f.ReceiptFilter)
}
