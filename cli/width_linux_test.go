package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// What matters most is there at 80 columns, with times that are short but whole.
func TestTables_KeepWhatMattersAt80Columns(t *testing.T) {
	t.Parallel()
	past := timestamppb.New(mustTime(t, "2025-10-09T07:08:09Z"))
	ended := &pb.Run{
		Id: "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", Worker: "ghost_user_migration", State: pb.RunState_RUN_STATE_SUCCEEDED,
		StartedAt: past, FinishedAt: past, Counts: map[string]int64{"moved_rows": 12345},
	}
	for name, c := range map[string]struct {
		show func(*app) error
		want []string
	}{
		"status": {func(a *app) error {
			return a.describeWorkers(&pb.WorkerStatus{
				Worker: "loose_foreign_keys_cleanup", Condition: pb.Condition_CONDITION_IDLE, NextRunAt: timestamppb.Now(), LastRun: ended,
				LastSuccessAt: past, Backlog: &pb.Backlog{Due: 7, Dead: 3}, ConditionDetail: strings.TrimSpace(strings.Repeat("waiting for something ", 9)),
			})
		}, []string{"CONDIT", "idle", "NEXT RUN  LAST RUN", "succeeded 10-09 07:08  7", "DEAD"}},
		"runs": {
			func(a *app) error { return a.describeRuns(&pb.ListRunsResponse{Runs: []*pb.Run{ended}}) },
			[]string{"STARTED", "succeeded  10-09 07:08  moved r…"},
		},
		"jobs": {func(a *app) error {
			args, err := structpb.NewStruct(map[string]any{"deleted_by_id": 4, "reason": "r", "user_id": 7, "skip_authorization": true})
			if err != nil {
				return err
			}
			return a.describeJobs(&pb.ListJobsResponse{Jobs: []*pb.Job{{Id: 12, Kind: "delete_user", Args: args, Outcome: "succeeded", RunId: ended.GetId(), ScheduledAt: past}}})
		}, []string{"user_id=7", "10-09 07:08"}},
		"audit": {func(a *app) error {
			return a.describeAudit(&pb.ListAuditResponse{Entries: []*pb.AuditEntry{{
				At: past, By: "alice", Address: "10.1.2.3:50123", Role: "operator", Action: "PauseWorker", Target: "ghost_user_migration", Outcome: "OK", Reason: `dry_run=false async=true run=7`,
			}}})
		}, []string{"REASON", "10-09 07:08", "alice", "OK       async=true"}},
		"receipts": {func(a *app) error {
			return a.describeReceipts(&pb.ListReceiptsResponse{Receipts: []*pb.Receipt{{
				Sequence: 17, At: past, Table: "issues", Action: "deleted", Rows: 100, LowestKey: "1234567", HighestKey: "1239999",
				Rule: "destroy group", Worker: "destroy_group", RunId: ended.GetId(), RequestedBy: "alice",
			}}})
		}, []string{"RULE", "ASKED BY", "10-09 07:08", "destroy group", "alice"}},
	} {
		got := shown(t, 80, c.show, "NO_COLOR=1")
		assert.Contains(t, got, c.want...)
		for line := range strings.Lines(got) {
			if n := length(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: a line of %d characters:\n%s", name, n, got)
			}
		}
	}
}

func mustTime(t *testing.T, text string) time.Time {
	t.Helper()
	at := assert.Must(time.Parse(time.RFC3339, text))(t)
	return at
}
