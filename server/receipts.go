package server

import (
	"context"
	"errors"
	"strconv"
	"strings"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ListReceipts pages through the receipts of a database, the newest first.
func (m *maintenance) ListReceipts(
	ctx context.Context, r *pb.ListReceiptsRequest,
) (*pb.ListReceiptsResponse, error) {
	run, err := m.runOf(ctx, r)
	if err != nil {
		return nil, err
	}
	for field, text := range map[string]string{"table": r.GetTable(), "key": r.GetKey(), "worker": r.GetWorker()} {
		if strings.ContainsRune(text, 0) {
			return nil, invalid(field, "must not contain NUL characters: PostgreSQL cannot store "+
				"them")
		}
	}
	since, until, err := bounds(r)
	if err != nil {
		return nil, err
	}
	p, err := newPage("receipts", r, append(times(r), r.GetDatabase(), r.GetTable(), r.GetKey(), r.GetRunId(),
		strconv.FormatInt(r.GetJobId(), 10), r.GetWorker())...)
	if err != nil {
		return nil, err
	}
	before, err := p.afterNumber()
	if err != nil {
		return nil, err
	}
	receipts, next, err := m.service.Receipts(ctx, service.ReceiptFilter{
		Database: r.GetDatabase(), ReceiptFilter: control.ReceiptFilter{
			Table: r.GetTable(), Key: r.GetKey(), RunID: run, JobID: r.GetJobId(),
			Worker: r.GetWorker(), Since: since, Until: until, Before: before, Limit: p.size + 1,
		},
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListReceiptsResponse{}
	response.Receipts, response.NextPageToken = fill(p, receipts, toReceipt,
		func(r *service.Receipt) string { return strconv.FormatInt(r.Sequence, 10) })
	if response.GetNextPageToken() == "" && next != 0 {
		// For a key, one page inspects only a limited number of receipts.
		response.NextPageToken = p.next(strconv.FormatInt(next, 10))
	}
	for _, listed := range response.GetReceipts() {
		if listed.Database = r.GetDatabase(); listed.GetDatabase() == "" {
			listed.Database = "main"
		}
	}
	return response, nil
}

// runOf returns the run that a list is limited to, "" for none.
func (m *maintenance) runOf(
	ctx context.Context, r interface{ GetRunId() string },
) (id string, err error) {
	if r.GetRunId() == "" {
		return "", nil
	}
	id, err = m.service.RunID(ctx, "run_id", r.GetRunId())
	if errors.Is(err, fault.ErrUnknownRun) {
		err = invalid("run_id", "matches no recorded run: use the id of a run, or its first characters")
	}
	return id, err
}

// toReceipt converts a receipt, with the hash that links it to the previous one.
func toReceipt(r *service.Receipt) *pb.Receipt {
	return &pb.Receipt{
		Sequence: r.Sequence, At: toTime(r.At), RunId: r.RunID, JobId: r.JobID, Worker: r.Worker,
		Table: r.Table, Action: r.Action, Rule: r.Rule, Rows: r.Rows, LowestKey: r.LowestKey,
		HighestKey: r.HighestKey, KeysDigest: r.KeysDigest, Keys: r.Keys,
		RequestedBy: r.RequestedBy, Hash: r.Hash,
	}
}
