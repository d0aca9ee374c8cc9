package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// outcomePrefix is that of the names of FireOutcome.
const outcomePrefix = "FIRE_OUTCOME_"

// ListFires pages through the ledger of fires, the newest first.
func (m *maintenance) ListFires(ctx context.Context, r *pb.ListFiresRequest) (*pb.ListFiresResponse, error) {
	outcome, err := fromOutcome(r.GetOutcome())
	if err != nil {
		return nil, err
	}
	p, err := newPage("fires", r.GetPageSize(), r.GetPageToken(), r.GetWorker(), outcome)
	if err != nil {
		return nil, err
	}
	filter := service.FireFilter{Worker: r.GetWorker(), Outcome: outcome, Limit: p.size + 1}
	if filter.After, filter.AfterWorker, err = p.afterFire(); err != nil {
		return nil, err
	}
	fires, err := m.service.Fires(ctx, filter)
	if err != nil {
		return nil, err
	}
	response := &pb.ListFiresResponse{}
	response.Fires, response.NextPageToken = fill(p, fires, toFire, fireKey)
	return response, nil
}

// fireKey is the key of the list: the time, and the worker.
func fireKey(f *service.Fire) string { return f.Time.UTC().Format(time.RFC3339Nano) + " " + f.Worker }

// afterFire is the fire behind which a list goes on, zero for the first page.
func (p page) afterFire() (at time.Time, worker string, err error) {
	if p.after == "" {
		return time.Time{}, "", nil
	}
	text, worker, _ := strings.Cut(p.after, " ")
	at, err = time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, "", errForeignToken()
	}
	return at, worker, nil
}

// fromOutcome is the outcome's name in package service, "" for any.
func fromOutcome(outcome pb.FireOutcome) (string, error) {
	name, known := pb.FireOutcome_name[int32(outcome)]
	if !known {
		return "", &service.InvalidArgumentError{Field: "outcome", Description: fmt.Sprintf("%d is not a FireOutcome", outcome)}
	}
	if outcome == pb.FireOutcome_FIRE_OUTCOME_UNSPECIFIED {
		return "", nil
	}
	return strings.ToLower(strings.TrimPrefix(name, outcomePrefix)), nil
}

func toFire(f *service.Fire) *pb.Fire {
	fire := &pb.Fire{
		Worker: f.Worker, FireTime: toTime(f.Time), Reason: run.Shorten(f.Reason, listText, "maintenance.fires has them"), RunId: f.RunID, ClaimedBy: f.ClaimedBy,
		Outcome:   pb.FireOutcome(pb.FireOutcome_value[outcomePrefix+strings.ToUpper(f.Outcome)]),
		ClaimedAt: toTime(f.ClaimedAt), StartedAt: toTime(f.StartedAt),
	}
	if !f.StartedAt.IsZero() {
		fire.Late = durationpb.New(f.Late())
	}
	return fire
}
