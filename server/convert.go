package server

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// Prefixes of the enums' names; behind them stand the words of package service, in capitals.
const (
	statePrefix     = "RUN_STATE_"
	triggerPrefix   = "TRIGGER_"
	conditionPrefix = "CONDITION_"
	classPrefix     = "FAILURE_CLASS_"
)

// toTime is nil for a time that is not set.
func toTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Texts of runs and jobs have no limit of their own: rows may be of other versions, or written by anybody.
const (
	wholeText = 256 << 10
	listText  = 2 << 10
)

// wholeRun is a run with all that a client can take of it, listedRun one among others. Both are nil for no run.
func wholeRun(r *service.Run) *pb.Run {
	return toRun(r, func(text string) string { return run.Shorten(text, wholeText, "maintenance.runs has them") })
}

func listedRun(r *service.Run) *pb.Run {
	return toRun(r, func(text string) string { return run.Shorten(text, listText, "GetRun") })
}

func toRun(r *service.Run, short func(string) string) *pb.Run {
	if r == nil {
		return nil
	}
	run := &pb.Run{
		Id: r.ID, Worker: r.Worker, Database: r.Database,
		Trigger: pb.Trigger(pb.Trigger_value[triggerPrefix+strings.ToUpper(r.Trigger)]),
		State:   pb.RunState(pb.RunState_value[statePrefix+strings.ToUpper(r.State)]),
		Reason:  short(r.Reason), DryRun: r.DryRun, StartedAt: toTime(r.StartedAt), FinishedAt: toTime(r.FinishedAt),
		Counts: r.Counts, OverLimit: r.OverLimit, Error: short(r.Error), TraceId: r.TraceID, LeaseEpoch: r.LeaseEpoch,
		TurboMode: r.TurboMode, RequestedBy: r.RequestedBy, Replica: r.Replica,
	}
	for _, t := range r.Tables {
		run.Tables = append(run.Tables, &pb.TableCount{Table: t.Table, Deleted: t.Deleted, Updated: t.Updated})
	}
	for _, d := range r.Definitions {
		run.Definitions = append(run.Definitions, &pb.DefinitionCount{
			Table: d.Table, Column: d.Column, Parent: d.Parent, Action: d.Action, Rows: d.Rows, AtLeast: d.AtLeast,
		})
	}
	return run
}

func toLease(l *service.Lease) *pb.Lease {
	worker, _, _ := strings.Cut(l.Name, "/")
	return &pb.Lease{
		Name: l.Name, Worker: worker, Database: l.Database, Holder: l.Holder, Epoch: l.Epoch, AcquiredAt: toTime(l.AcquiredAt),
		RenewedAt: toTime(l.RenewedAt), ExpiresAt: toTime(l.ExpiresAt), Expired: l.Expired,
	}
}

func toStatus(w service.WorkerStatus) *pb.WorkerStatus {
	status := &pb.WorkerStatus{
		Worker: w.Worker, Schedule: w.Schedule, NextRunAt: toTime(w.NextRunAt), CurrentRun: listedRun(w.CurrentRun),
		LastRun: listedRun(w.LastRun), LastSuccessAt: toTime(w.LastSuccessAt),
		Condition:       pb.Condition(pb.Condition_value[conditionPrefix+string(w.Condition)]),
		ConditionDetail: run.Shorten(w.ConditionDetail, 4*listText, "GetRun, and the server's log"),
	}
	if !w.BacklogUnknown {
		status.Backlog = &pb.Backlog{
			Pending: w.Backlog.Pending, OldestAt: toTime(w.Backlog.OldestAt), Due: w.Backlog.Due, Deferred: w.Backlog.Deferred,
			Dead: w.Backlog.Dead,
		}
	}
	if f := w.Failing; f != nil {
		class := pb.FailureClass(pb.FailureClass_value[classPrefix+string(f.Class)])
		status.Failing = &pb.Failing{Since: toTime(f.Since), Class: class, Message: run.Shorten(f.Message, listText, "GetRun"), Database: f.Database}
	}
	if w.Paused != nil {
		status.Paused = &pb.Pause{
			Reason: w.Paused.Reason, By: w.Paused.By, Since: toTime(w.Paused.Since), Until: toTime(w.Paused.Until),
		}
	}
	for i := range w.Leases {
		status.Leases = append(status.Leases, toLease(&w.Leases[i]))
	}
	return status
}
