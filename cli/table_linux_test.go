package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestTables_AnEmptyListIsASentence(t *testing.T) {
	t.Parallel()
	for want, show := range map[string]func(*terminal) error{
		"no runs\n":          func(a *terminal) error { return describeRuns(a, &pb.ListRunsResponse{}) },
		"no leases\n":        func(a *terminal) error { return describeLeases(a, &pb.ListLeasesResponse{}) },
		"no entries\n":       func(a *terminal) error { return describeAudit(a, &pb.ListAuditResponse{}) },
		"no receipts\n":      func(a *terminal) error { return describeReceipts(a, &pb.ListReceiptsResponse{}) },
		"no feature flags\n": func(a *terminal) error { return describeFlags(a) },
	} {
		assert.Equal(t, inPipe(t, show), want)
	}
}

// Rows that differ in their worker or condition look different.
func TestTables_CutTheColumnsThatDistinguishRowsLast(t *testing.T) {
	t.Parallel()
	at := timestamppb.New(mustTime(t, "2025-10-09T07:08:09Z"))
	run := &pb.Run{
		Id: "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", Worker: "loose_foreign_keys_cleanup", DryRun: true, State: pb.RunState_RUN_STATE_SUCCEEDED,
		StartedAt: at, FinishedAt: at, Reason: strings.Repeat("a limit was reached, ", 8), Database: "main",
	}
	runs := func(a *terminal) error { return describeRuns(a, &pb.ListRunsResponse{Runs: []*pb.Run{run}}) }
	assert.Contains(t, shown(t, 100, runs, "NO_COLOR=1"), "loose_foreign_keys_cleanup on main (dry run)", "STARTED", "a limit was re…")
	assert.Contains(t, shown(t, 80, runs, "NO_COLOR=1"), "loose_foreign_keys_cleanup on …")
	workers := func(a *terminal) error {
		return describeWorkers(a, &pb.WorkerStatus{
			Worker: run.GetWorker(), Condition: pb.Condition_CONDITION_SCHEDULER_OFF, NextRunAt: at, LastRun: run, LastSuccessAt: at,
			Backlog: &pb.Backlog{Due: 1_234_567, Dead: 12},
		})
	}
	assert.Contains(t, shown(t, 100, workers, "NO_COLOR=1"), "scheduler off")
}
