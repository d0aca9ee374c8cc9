package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/telemetry"
)

// shown returns what a terminal of that width shows.
func shown(t *testing.T, width uint16, do func(*terminal) error, environment ...string) string {
	t.Helper()
	keys, screen := Terminal(t)
	assert.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}))
	text := make(chan string)
	go func() {
		content, err := io.ReadAll(keys)
		if err != nil && !errors.Is(err, syscall.EIO) { // EIO: the other side is closed
			t.Error(err)
		}
		text <- strings.ReplaceAll(string(content), "\r\n", "\n")
	}()
	assert.NoError(t, do(&terminal{std: Streams{Out: screen, Err: io.Discard, Env: environment}}))
	assert.NoError(t, screen.Close())
	return <-text
}

// inPipe is the same without a terminal.
func inPipe(t *testing.T, do func(*terminal) error) string {
	t.Helper()
	var out strings.Builder
	assert.NoError(t, do(&terminal{std: Streams{Out: &out, Err: io.Discard}}))
	return out.String()
}

// example is a table with long values. ids are those that must never be cut.
type example struct {
	show func(*terminal) error
	ids  []string
}

// examples has every table that commands print.
func wideTables() map[string]example {
	const run, longWorker = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "loose_foreign_keys_cleanup"
	words := strings.Repeat("a limit was reached and more is left, ", 8)
	name := "a-group-with-a-long-path/" + strings.Repeat("and-more/", 9)
	now := timestamppb.New(time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC))
	id := int64(9_123_456_789_012)
	tables := []*pb.TableCount{{Table: "archive:" + strings.Repeat("merge_request_diff_", 4), Deleted: id, Updated: id}}
	ended := &pb.Run{
		Id: run, Worker: longWorker, Database: "main", DryRun: true, State: pb.RunState_RUN_STATE_CANCELLED, Trigger: pb.Trigger_TRIGGER_SCHEDULE,
		StartedAt: now, FinishedAt: now, Reason: words, Counts: map[string]int64{"processed_records": id, "rescheduled_records": id}, Error: words,
	}
	return map[string]example{
		"status": {func(a *terminal) error {
			return describeWorkers(a, &pb.WorkerStatus{
				Worker: longWorker, Condition: pb.Condition_CONDITION_LEASE_HELD_ELSEWHERE, NextRunAt: now, LastSuccessAt: now, LastRun: ended,
				Backlog: &pb.Backlog{Due: 1_234_567, Deferred: 1_234_567, Dead: 123_456},
			})
		}, []string{longWorker}},
		"leases": {func(a *terminal) error {
			return describeLeases(a, &pb.ListLeasesResponse{Leases: []*pb.Lease{{Name: longWorker + "/a_database_with_a_long_name_31", Holder: name, Epoch: 123_456, AcquiredAt: now, RenewedAt: now, ExpiresAt: now}}})
		}, []string{longWorker + "/a_database_with_a_long_name_31"}},
		"runs": {func(a *terminal) error { return describeRuns(a, &pb.ListRunsResponse{Runs: []*pb.Run{ended}}) }, []string{run[:13]}},
		"fires": {func(a *terminal) error {
			return describeFires(a, &pb.ListFiresResponse{Fires: []*pb.Fire{{FireTime: now, Worker: longWorker, Outcome: pb.FireOutcome_FIRE_OUTCOME_SKIPPED, ClaimedBy: name, RunId: run, Reason: words}}})
		}, []string{run[:13], "11-22 18:30"}},
		"jobs": {func(a *terminal) error {
			return describeJobs(a, &pb.ListJobsResponse{Jobs: []*pb.Job{{
				Id: id, Kind: "continue_inactive_token_deletion", JobState: pb.JobState_JOB_STATE_RETRYABLE, Attempt: 25, MaxAttempts: 25,
				ScheduledAt: now, RunId: run, Outcome: "refused", Reason: "STILL_REFERENCED", Errors: []*pb.JobError{{Error: words}},
			}}})
		}, []string{fmt.Sprint(id)}},
		"jobs show": {func(a *terminal) error { return changedRows(a, tables) }, []string{number(id)}},
		"flags": {func(a *terminal) error {
			return describeFlags(a, &pb.FeatureFlag{Name: "loose_foreign_keys_turbo_mode_a_database_with_a_long_name_31", Enabled: true})
		}, []string{"loose_foreign_keys_turbo_mode_a_database_with_a_long_name_31"}},
		"protected": {func(a *terminal) error {
			return describeProtected(a, &pb.ListProtectedResponse{Protections: []*pb.Protection{{Kind: "group", Id: id, Since: now, Until: now, By: name, Reason: words}}})
		}, []string{fmt.Sprint(id)}},
		"receipts list": {func(a *terminal) error {
			return describeReceipts(a, &pb.ListReceiptsResponse{Receipts: []*pb.Receipt{{
				Sequence: 12_345_678, At: now, Table: name, Action: "nullified", Rows: 12_345, LowestKey: number(id), HighestKey: number(id + 9999),
				Rule: words, Worker: longWorker, RunId: run, RequestedBy: name,
			}}})
		}, []string{"12345678"}},
		"audit": {func(a *terminal) error {
			return describeAudit(a, &pb.ListAuditResponse{Entries: []*pb.AuditEntry{{
				At: now, By: name, Address: "[2001:db8::1234:5678]:51234", Role: "operator", Action: "SetFeatureFlag", Target: longWorker, Outcome: "PERMISSION_DENIED", Reason: words,
			}}})
		}, []string{"SetFeatureFlag"}},
		"plan": {func(a *terminal) error {
			return plannedTables(a, []*pb.PlannedTable{{Table: tables[0].GetTable(), Moved: 123_456, Nullified: 123_456, Deleted: 1_234_567, Kept: 12_345, AtLeast: true}})
		}, nil},
		"candidates": {func(a *terminal) error {
			return describeCandidates(a, &pb.Run{Candidates: []*pb.Candidate{{Kind: "placeholder", Id: id, Name: name, Action: "postpone", Reason: words}}})
		}, []string{fmt.Sprint(id)}},
		"definitions": {func(a *terminal) error {
			return describeRows(a, &pb.Run{Definitions: []*pb.DefinitionCount{{Table: tables[0].GetTable(), Column: "merge_request_id", Parent: name, Action: "update_column_to", Rows: id, AtLeast: true}}})
		}, nil},
		"lfk dead":    {longDead, []string{"123456789", "a_database_with"}},
		"lfk failing": {longFailing, []string{"123456789"}},
		"lfk adopt --list": {func(a *terminal) error {
			c := admin.Candidate{Database: "main", Constraint: "order_items_customer_id_fkey", Table: "shop.order_items", Columns: []string{"customer_id"}, Parent: "shop.customers", OnDelete: "SET NULL", Refused: words}
			return (&lfkCommands{terminal: a}).candidates().show(&lfkCommands{terminal: a}, []admin.Candidate{c}, nil)
		}, []string{"shop.order_items.customer_id", "shop.customers"}},
	}
}

func longDead(a *terminal) error {
	l := &lfkCommands{terminal: a}
	r := admin.DeadRecord{Database: "a_database_with"}
	r.ID, r.Table, r.Number, r.Definition = 123_456_789, "public.merge_request_diffs_of_long_ago", new(int64(1_234_567_890)), "a_table_with_a_name.merge_request_id"
	r.SQLState, r.Failures, r.Message = "23503", 10, strings.Repeat("violates a constraint ", 9)
	return l.deadRecords().show(l, []admin.DeadRecord{r}, nil)
}

func longFailing(a *terminal) error {
	l := &lfkCommands{terminal: a}
	r := admin.FailingRecord{Database: "a_database_with"}
	r.ID, r.Table, r.Number, r.Definition = "123456789", "public.merge_request_diffs_of_long_ago", new(int64(1_234_567_890)), "a_table_with_a_name.merge_request_id"
	r.SQLState, r.Failures = "KEPT_BY_TRIGGER", 9
	return l.failingRecords().show(l, []admin.FailingRecord{r}, nil)
}

func TestTables_FitATerminalOf80ColumnsAndKeepIDsWhole(t *testing.T) {
	const plain = "NO_COLOR=1"
	for name, table := range wideTables() {
		narrow, whole := shown(t, 80, table.show, plain), inPipe(t, table.show)
		wide := func(a *terminal) error {
			a.wide = true
			return table.show(a)
		}
		for line := range strings.Lines(narrow) {
			if n := length(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: a line of %d characters:\n%s", name, n, narrow)
				break
			}
		}
		assert.Contains(t, narrow, table.ids...)
		if strings.Contains(whole, "…") || length(strings.SplitN(whole, "\n", 2)[0]) < length(strings.SplitN(narrow, "\n", 2)[0]) {
			t.Errorf("%s: in a pipe it is not whole:\n%s", name, whole)
		}
		assert.Equal(t, shown(t, 80, wide, plain), inPipe(t, wide), "--output wide is not whole", name)
		assert.Equal(t, shown(t, 1000, table.show, plain), whole, "a terminal that is wide enough does not have all", name)
	}
}

func TestTables_WrapWhatIsToBeReadAsAWhole(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("55P03 lock_not_available on main ", 9))
	got := shown(t, 80, func(a *terminal) error {
		return describeJob(a, &pb.Job{Errors: []*pb.JobError{{Attempt: 3, Error: words}, {Attempt: 4, Error: "short"}}})
	})
	assert.Contains(t, strings.Join(strings.Fields(got), " "), "attempt 3, started -: "+words+" "+
		"attempt 4, started -: short")
}

func TestTables_ObeyNothingOfADatabase(t *testing.T) {
	got := inPipe(t, func(a *terminal) error {
		return describeCandidates(a, &pb.Run{Candidates: []*pb.Candidate{{Kind: "group", Id: 7, Name: "a\x1b[2Jb\r\nc\td", Action: "queue"}}})
	})
	want := "KIND   ID  NAME         ACTION  REASON\ngroup  7   a [2Jb  c d  queue\n"
	assert.That(t, got == want, "got %q, want %q", got, want)
}

func TestColours_AreForTerminalsThatWantThem(t *testing.T) {
	table := func(a *terminal) error {
		for _, state := range []pb.RunState{pb.RunState_RUN_STATE_FAILED, pb.RunState_RUN_STATE_SUCCEEDED, pb.RunState_RUN_STATE_CANCELLED} {
			if err := describeRun(a, &pb.Run{State: state}); err != nil {
				return err
			}
		}
		return describeRuns(a, &pb.ListRunsResponse{Runs: []*pb.Run{{Id: "1", State: pb.RunState_RUN_STATE_FAILED}}})
	}
	got := shown(t, 200, table, "NO_COLOR=", "TERM=xterm")
	assert.Contains(t, got, " \x1b[31mfailed\x1b[0m in", " succeeded in", " \x1b[33mcancelled\x1b[0m in", "\x1b[31mfailed\x1b[0m  -")
	assert.Lacks(t, inPipe(t, table), "\x1b")
	for _, variable := range []string{"NO_COLOR=1", "TERM=dumb"} {
		assert.Lacks(t, shown(t, 200, table, variable), "\x1b")
	}
}

func TestTimes_AreUTCUnlessTheyAreLocal(t *testing.T) {
	zone := time.FixedZone("XST", 5*3600+1800)
	before := time.Local                   //nolint:gosmopolitan // what --local is about
	time.Local = zone                      //nolint:gosmopolitan // what --local is about
	defer func() { time.Local = before }() //nolint:gosmopolitan // what --local is about
	at := timestamppb.New(time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC))
	for local, want := range map[bool][]string{
		false: {"ACQUIRED (UTC)", "2026-11-22 18:30:00", "The next run starts at 2026-11-22 18:30:00 UTC.", "paused since 2026-11-22T18:30:00Z"},
		true:  {"ACQUIRED   ", "2026-11-23 00:00:00 XST", "The next run starts at 2026-11-23 00:00:00 XST.", "paused since 2026-11-23 00:00:00 XST"},
	} {
		got := inPipe(t, func(a *terminal) error {
			a.local = local
			explainCondition(a, &pb.WorkerStatus{
				Worker: "w", ConditionDetail: "w paused since 2026-11-22T18:30:00Z", NextRunAt: at, Failing: &pb.Failing{Class: pb.FailureClass_FAILURE_CLASS_LOCK},
			})
			return describeLeases(a, &pb.ListLeasesResponse{Leases: []*pb.Lease{{Name: "l", AcquiredAt: at}}})
		})
		assert.Contains(t, got, want...)
	}
}

// The most important columns are shown at 80 columns, with times that are short but whole.
func TestTables_KeepWhatMattersAt80Columns(t *testing.T) {
	t.Parallel()
	past := timestamppb.New(mustTime(t, "2025-10-09T07:08:09Z"))
	ended := &pb.Run{
		Id: "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", Worker: "ghost_user_migration", State: pb.RunState_RUN_STATE_SUCCEEDED,
		StartedAt: past, FinishedAt: past, Counts: map[string]int64{"moved_rows": 12345},
	}
	for name, c := range map[string]struct {
		show func(*terminal) error
		want []string
	}{
		"status": {func(a *terminal) error {
			return describeWorkers(a, &pb.WorkerStatus{
				Worker: "loose_foreign_keys_cleanup", Condition: pb.Condition_CONDITION_IDLE, NextRunAt: timestamppb.Now(), LastRun: ended,
				LastSuccessAt: past, Backlog: &pb.Backlog{Due: 7, Dead: 3}, ConditionDetail: strings.TrimSpace(strings.Repeat("waiting for something ", 9)),
			})
		}, []string{"CONDIT", "idle", "NEXT RUN  LAST RUN", "succeeded 10-09 07:08  7", "DEAD"}},
		"runs": {
			func(a *terminal) error { return describeRuns(a, &pb.ListRunsResponse{Runs: []*pb.Run{ended}}) },
			[]string{"STARTED", "01a1fbb2-62fe  ghost_user_migration  succeeded  10-09 07:08  12,345 rows moved"},
		},
		"jobs": {func(a *terminal) error {
			args, err := structpb.NewStruct(map[string]any{"deleted_by_id": 4, "reason": "r", "user_id": 7, "skip_authorization": true})
			if err != nil {
				return err
			}
			return describeJobs(a, &pb.ListJobsResponse{Jobs: []*pb.Job{{Id: 12, Kind: "delete_user", Args: args, Outcome: "succeeded", RunId: ended.GetId(), ScheduledAt: past}}})
		}, []string{"user_id=7", "10-09 07:08"}},
		"audit": {func(a *terminal) error {
			return describeAudit(a, &pb.ListAuditResponse{Entries: []*pb.AuditEntry{{
				At: past, By: "alice", Address: "10.1.2.3:50123", Role: "operator", Action: "PauseWorker", Target: "ghost_user_migration", Outcome: "OK", Reason: `dry_run=false async=true run=7`,
			}}})
		}, []string{"REASON", "10-09 07:08", "alice", "OK       async=true"}},
		"receipts": {func(a *terminal) error {
			return describeReceipts(a, &pb.ListReceiptsResponse{Receipts: []*pb.Receipt{{
				Sequence: 17, At: past, Table: "issues", Action: "deleted", Rows: 100, LowestKey: "1234567", HighestKey: "1239999",
				Rule: "destroy group", Worker: "destroy_group", RunId: ended.GetId(), RequestedBy: "alice",
			}}})
		}, []string{"RULE", "ASKED BY", "10-09 07:08", "destroy group", "alice"}},
	} {
		got := shown(t, 80, c.show, "NO_COLOR=1")
		assert.Contains(t, got, c.want...)
		for line := range strings.Lines(got) {
			n := length(strings.TrimSuffix(line, "\n"))
			assert.That(t, n <= 80, "%s: a line of %d characters:\n%s", name, n, got)
		}
	}
}

func mustTime(t *testing.T, text string) time.Time {
	t.Helper()
	return assert.Must(time.Parse(time.RFC3339, text))(t)
}

func planOf(ids ...int64) *pb.Run {
	run := &pb.Run{DryRun: true, CandidatesDigest: "d", State: pb.RunState_RUN_STATE_SUCCEEDED}
	for _, id := range ids {
		run.Candidates = append(run.Candidates, &pb.Candidate{Kind: "group", Id: id, Name: "acme", Action: "queue"})
	}
	return run
}

func TestRun_AChangedPlanSaysHowToGoOn(t *testing.T) {
	for _, c := range []struct {
		digest string
		asked  bool
		want   string
	}{
		{"d", true, "the candidates have changed since the dry run: run the command again"},
		{"", true, "time limit is too short to check all candidates"},
		{"d", false, "start a new dry run, and use its digest in --expected-digest"},
	} {
		refused := assert.Must(status.New(codes.FailedPrecondition, "expected_digest").WithDetails(&errdetails.ErrorInfo{
			Reason: "PLAN_CHANGED", Metadata: map[string]string{"run_id": "r7", "candidates_digest": c.digest},
		}))(t)
		text := explainChange(refused.Err(), c.asked).Error()
		if !strings.Contains(text, c.want) || !strings.HasSuffix(text, "(PLAN_CHANGED, run r7)") || strings.Contains(text, "_digest") {
			t.Errorf("%s, want %s", text, c.want)
		}
	}
	other := errors.New("other")
	if err := explainChange(other, true); !errors.Is(err, other) {
		t.Error(err)
	}
}

func TestRun_TheQuestionSaysOnHowMuch(t *testing.T) {
	many := planOf(1, 2)
	many.MoreCandidates = 1000
	for want, plan := range map[string]*pb.Run{
		"1 candidate": planOf(1), "1,002 candidates": many,
		"3 records without child rows": {Counts: map[string]int64{"processed_records": 3}},
		"at least 7 rows":              {Definitions: []*pb.DefinitionCount{{Rows: 3}, {Rows: 4, AtLeast: true}}},
		"at least 17 rows (children of children are not counted)": {
			Definitions: []*pb.DefinitionCount{{Rows: 15, Action: "async_delete"}, {Rows: 2, Action: "async_nullify"}},
		},
		"2 rows": {Definitions: []*pb.DefinitionCount{{Action: "async_delete"}, {Rows: 2, Action: "async_nullify"}}},
	} {
		assert.Equal(t, extent(plan), want)
	}
	assert.That(t, nothingDue(planOf()) && !nothingDue(many) && !nothingDue(&pb.Run{}), "what has nothing to do is not known")
	const worker = "loose_foreign_keys_cleanup"
	due := map[string]int64{"processed_records": 1}
	assert.That(t, nothingDue(&pb.Run{Worker: worker}) && !nothingDue(&pb.Run{Worker: worker, OverLimit: true}) &&
		!nothingDue(&pb.Run{Worker: worker, Counts: due}), "whether records are due is not known")
}

func TestRun_ADryRunSpeaksOfWhatWouldBe(t *testing.T) {
	plan := planOf(7)
	plan.Counts = map[string]int64{"scheduled_jobs": 1}
	got := inPipe(t, func(a *terminal) error { return describeRun(a, plan) })
	if !strings.Contains(got, "  counts  would schedule 1 job\n") || !strings.Contains(got, "KIND   ID  NAME  WOULD  REASON\n") {
		t.Error(got)
	}
}

func TestCounts_AreEnglish(t *testing.T) {
	run := &pb.Run{Counts: map[string]int64{
		"deleted_rows": 10817, "updated_rows": 2280, "processed_records": 550, "failed_users": 1, "held_groups": 0,
	}}
	assert.Equal(t, counts(run), "10,817 rows deleted, 1 user failed, 550 records processed, 2,280 rows updated")
	run.DryRun = true
	assert.Equal(t, counts(run), "would delete 10,817 rows and update 2,280 rows (1 user failed, 550 records)")
	run.Counts = map[string]int64{"held_groups": 2}
	assert.Equal(t, counts(run), "2 groups held")
	for n, want := range map[int64]string{0: "0", -1: "-1", 999: "999", -1000: "-1,000", 1234567: "1,234,567"} {
		assert.Equal(t, number(n), want)
	}
}

func TestTables_ShowAsMuchOfAnIDAsTellsRunsApart(t *testing.T) {
	t.Parallel()
	runs := func(ids ...string) string {
		answer := &pb.ListRunsResponse{}
		for _, id := range ids {
			answer.Runs = append(answer.Runs, &pb.Run{Id: id})
		}
		table := inPipe(t, func(a *terminal) error { return describeRuns(a, answer) })
		var first []string
		for line := range strings.Lines(table) {
			first = append(first, strings.Fields(line)[0])
		}
		return strings.Join(first[1:], " ")
	}
	const a, b, c = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "01a1fbb2-62ff-7420-8c8f-e59373dcf4f4", "01a1fbb3-0000-7420-8c8f-e59373dcf4f4"
	assert.Equal(t, runs(a), "01a1fbb2-62fe")
	assert.Equal(t, runs(a, c), "01a1fbb2-62fe 01a1fbb3-0000")
	assert.Equal(t, runs(a, b, c, a), "01a1fbb2-62fe 01a1fbb2-62ff 01a1fbb3-0000 01a1fbb2-62fe")
	const d = "01a1fbb2-62fe-7421-8c8f-e59373dcf4f4"
	assert.Equal(t, runs(a, d), "01a1fbb2-62fe-7420 01a1fbb2-62fe-7421")
}

func TestStatus_WhatIsDeadOrDeferredNamesWhereItIsListed(t *testing.T) {
	for worker, want := range map[string]string{
		"loose_foreign_keys_cleanup": ": 2 dead records: run `caretaker lfk dead` to list the records\n",
		"ghost_user_migration": ": see the status page (web_listen) for 2 dead items at /workers/ghost_user_migration/dead " +
			"and 3 deferred items at /workers/ghost_user_migration/deferred\n",
	} {
		got := inPipe(t, func(a *terminal) error {
			return describeWorkers(a, &pb.WorkerStatus{Worker: worker, Backlog: &pb.Backlog{Dead: 2, Deferred: 3}})
		})
		assert.Contains(t, got, worker+want)
	}
}

func TestLog_OnATerminalIsOneLineAnEventWithoutStacks(t *testing.T) {
	t.Parallel()
	text := shown(t, 80, func(out *terminal) error {
		telemetry.NewLogger(out.std.Out, "", "").Error("run failed", "error", "broken")
		return nil
	})
	assert.Contains(t, text, "level=ERROR msg=\"run failed\" error=broken\n")
	assert.Equal(t, strings.Count(text, "\n"), 1, text)
}
