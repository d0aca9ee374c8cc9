package server

import (
	"cmp"
	"context"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

const recordStatePrefix, decisionPrefix = "RECORD_STATE_", "RECORD_DECISION_"

// ListRecords pages through the records of one state, by database and id.
func (m *maintenance) ListRecords(
	ctx context.Context, r *pb.ListRecordsRequest,
) (*pb.ListRecordsResponse, error) {
	state, err := filter("state", recordStatePrefix, r.GetState())
	if err == nil {
		err = printable("table", r.GetTable())
	}
	if err != nil {
		return nil, err
	}
	state = cmp.Or(state, admin.RecordDead)
	p, err := newPage("records", r, state, r.GetDatabase(), r.GetTable())
	if err != nil {
		return nil, err
	}
	records, unread, err := m.service.Records(ctx, r.GetDatabase(), admin.RecordFilter{
		State: state, Table: r.GetTable(), After: p.after, Limit: p.size + 1,
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListRecordsResponse{Unread: unread}
	response.Records, response.NextPageToken = fill(p, records, toRecord,
		func(r *admin.Record) string { return r.Cursor })
	return response, nil
}

// DecideRecords queues dead records again, or decides on reused keys.
func (m *maintenance) DecideRecords(
	ctx context.Context, r *pb.DecideRecordsRequest,
) (*pb.DecideRecordsResponse, error) {
	decision, err := filter("decision", decisionPrefix, r.GetDecision())
	if err == nil {
		err = printable("table", r.GetTable())
	}
	if err != nil {
		return nil, err
	}
	done, err := m.service.DecideRecords(ctx, service.RecordDecision{
		Decision: decision, Table: r.GetTable(), ID: r.GetId(), Database: r.GetDatabase(), By: caller(ctx),
	})
	if err != nil {
		return nil, err
	}
	response := &pb.DecideRecordsResponse{}
	for _, d := range done {
		response.Databases = append(response.Databases, &pb.DecidedRecords{Database: d.Database, Records: d.Records})
	}
	return response, nil
}

// toRecord converts a record.
func toRecord(r *admin.Record) *pb.Record {
	return &pb.Record{
		Database: r.Database, Id: r.ID, State: enum[pb.RecordState](pb.RecordState_value, recordStatePrefix, r.State),
		Table: r.Table, Key: r.Key, Definition: r.Definition, Cause: r.Cause,
		Failures: int32(r.Failures), FailedAt: toTime(r.FailedAt), NextTryAt: toTime(r.NextTry), //nolint:gosec // at most a few
	}
}
