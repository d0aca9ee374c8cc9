package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
)

// ReceiptHead names a receipt of a database. A copy kept elsewhere proves later whether that
// receipt was removed early, or the chain up to it rewritten. It does not show which earlier
// receipts were removed: only their own heads do.
type ReceiptHead struct {
	Database string `json:"database"`
	Sequence int64  `json:"sequence"`
	// Hash is hexadecimal, "" before the first receipt.
	Hash string `json:"hash"`
	// Until is when the receipt expires, by the configuration in force then, zero if unknown.
	Until time.Time `json:"until,omitzero"`
}

// ReceiptCheck is the result of verifying a database's receipts.
type ReceiptCheck struct {
	// ReceiptHead is the newest receipt in the database.
	ReceiptHead
	// Receipts is the number of receipts read. Pruned is the last pruned receipt.
	Receipts int64 `json:"receipts"`
	Pruned   int64 `json:"pruned"`
	// Findings are the problems, at most 100. MoreFindings is the number of further ones.
	Findings     []string `json:"findings"`
	MoreFindings int      `json:"moreFindings"`
	// Unchecked lists the heads whose receipts were pruned since.
	Unchecked []string `json:"unchecked"`
}

// maxFindings is the maximum number of findings listed.
const maxFindings = 100

// HeadOfReceipts reads the head of a database's receipts. keep is how long receipts are kept.
func HeadOfReceipts(
	ctx context.Context, d *repo.Database, keep time.Duration,
) (ReceiptHead, error) {
	h, err := d.Receipts.ReceiptHead(ctx)
	head := ReceiptHead{Database: d.Name, Sequence: h.Sequence, Hash: h.Hash}
	if !h.At.IsZero() {
		head.Until = h.At.UTC().Add(keep).Truncate(time.Second)
	}
	return head, err
}

// VerifyReceipts reads all receipts of a database, page by page, and recomputes the chain. A
// missing, altered or inserted receipt is a finding. known are heads that were read before.
// Receipts may be written and pruned meanwhile.
func VerifyReceipts(
	ctx context.Context, d *repo.Database, known []ReceiptHead,
) (ReceiptCheck, error) {
	for {
		begin, err := d.Receipts.ReceiptHead(ctx)
		if errors.Is(err, dberr.ErrNotFound) {
			check := ReceiptCheck{ReceiptHead: ReceiptHead{Database: d.Name}}
			check.find("the head is missing from maintenance.receipt_head, so caretaker cannot change any rows")
			return check, nil
		}
		if err != nil {
			return ReceiptCheck{}, err
		}
		v := &verification{database: d, begin: begin, known: known}
		v.ReceiptHead = ReceiptHead{
			Database: d.Name, Sequence: begin.PrunedSequence, Hash: begin.PrunedHash,
		}
		v.Pruned = begin.PrunedSequence
		v.checkKnown(begin.PrunedSequence, begin.PrunedHash)
		end, err := v.run(ctx)
		if err != nil || end.PrunedSequence == begin.PrunedSequence {
			return v.ReceiptCheck, err
		}
		// Receipts pruned meanwhile look like missing ones: verify again.
	}
}

// verification is one walk over the receipts. Its head is the last receipt read.
type verification struct {
	ReceiptCheck
	database *repo.Database
	// begin is the head at the start of the walk, known the heads that were read before.
	begin control.ReceiptHead
	known []ReceiptHead
}

// find adds a finding. Beyond maxFindings it only counts further ones in MoreFindings.
func (c *ReceiptCheck) find(format string, args ...any) {
	if len(c.Findings) == maxFindings {
		c.MoreFindings++
		return
	}
	c.Findings = append(c.Findings, fmt.Sprintf(format, args...))
}

// run reads all receipts, including those written meanwhile, and returns the head at the end.
func (v *verification) run(ctx context.Context) (end control.ReceiptHead, err error) {
	// Start at the lowest number: a forged receipt may come before the first one.
	from, last := int64(math.MinInt64), int64(math.MinInt64)
	for {
		page, err := v.database.Receipts.CheckReceipts(ctx, from, v.Hash)
		if err != nil {
			return end, err
		}
		for _, r := range page {
			v.check(r)
			last = r.Sequence
		}
		if len(page) > 0 && last < math.MaxInt64 {
			from = last + 1
			continue
		}
		end, err = v.database.Receipts.ReceiptHead(ctx)
		if errors.Is(err, dberr.ErrNotFound) {
			v.find("the head is missing from maintenance.receipt_head")
			return v.begin, nil
		}
		if err != nil || end.Newest <= max(last, v.begin.PrunedSequence) {
			v.checkEnd(end)
			return end, err
		}
	}
}

// check compares a receipt with the previous one.
func (v *verification) check(r control.CheckedReceipt) {
	v.Receipts++
	switch expected := v.Sequence + 1; {
	case r.Sequence < expected:
		v.find("receipt %d was inserted before the first receipt %d", r.Sequence, v.Pruned+1)
		return
	case r.Sequence > expected+1:
		v.find("receipts %d to %d are missing", expected, r.Sequence-1)
	case r.Sequence > expected:
		v.find("receipt %d is missing", expected)
	case !r.Intact:
		v.find("receipt %d or the previous receipt was changed after it was written", r.Sequence)
	}
	if !r.KeysIntact {
		v.find("the keys of receipt %d do not match its digest", r.Sequence)
	}
	v.Sequence, v.Hash = r.Sequence, r.Hash
	v.checkKnown(r.Sequence, r.Hash)
}

// checkKnown compares a receipt with the known heads.
func (v *verification) checkKnown(sequence int64, hash string) {
	for _, k := range v.known {
		if k.Database == v.Database && k.Sequence == sequence && k.Hash != hash {
			v.find("receipt %d differs from the given head, so the chain was rewritten",
				sequence)
		}
	}
}

// checkEnd compares the last receipt with the head, and the known heads with both.
func (v *verification) checkEnd(end control.ReceiptHead) {
	switch {
	case end.Sequence > v.Sequence:
		v.find("receipts %d to %d are missing at the end", v.Sequence+1, end.Sequence)
	case end.Sequence < v.Sequence:
		v.find("the head names receipt %d, but the last receipt is %d, so the head or the receipts were changed",
			end.Sequence, v.Sequence)
	case end.Hash != v.Hash:
		v.find("the hash of the head differs from the hash of receipt %d", v.Sequence)
	}
	for _, k := range v.known {
		switch {
		case k.Database != v.Database:
		case k.Sequence > v.Sequence:
			v.find("receipt %d of the given head is missing, because the chain was truncated after receipt %d",
				k.Sequence, v.Sequence)
		case k.Sequence <= v.Pruned && k.Until.After(time.Now()):
			v.find("receipt %d of the given head was pruned before its retention period ended at %s",
				k.Sequence, k.Until.UTC().Format(time.RFC3339))
		case k.Sequence < v.Pruned && k.Sequence > 0:
			v.Unchecked = append(v.Unchecked,
				fmt.Sprintf("the head of receipt %d cannot be checked, because the receipt has expired", k.Sequence))
		}
	}
}
