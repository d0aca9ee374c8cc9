package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

// refusal is the error of a call, and either the field that the error names, or its reason with the metadata.
type refusal struct {
	want string
	err  error
}

// wrongRequests makes calls that are refused whatever the state of the workers and of main.
func wrongRequests(ctx context.Context, f *fixture) []refusal {
	const ghosts, digest = "ghost_user_migration", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	long, longer := strings.Repeat("x", 129), strings.Repeat("x", 2000)
	all := []refusal{
		{"worker", second(f.RunBatch(ctx, &pb.RunBatchRequest{}))},
		{"request_id", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, RequestId: long}))},
		{"request_id", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, RequestId: longer}))},
		{"request_id", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: "nobody", RequestId: longer}))},
		{"request_id", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, RequestId: "a\nb"}))},
		{"request_id", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, RequestId: "a\x00b"}))},
		{"database", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, Database: "a\nb"}))},
		{"database", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: ghosts, Database: "main"}))},
		{"database", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: ghosts, Database: "main", RequestId: "used"}))},
		{"expected_digest", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: ghosts, ExpectedDigest: digest, DryRun: true}))},
		{"expected_digest", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: ghosts, ExpectedDigest: strings.ToUpper(digest)}))},
		{"expected_digest", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, ExpectedDigest: digest}))},
		{"UNKNOWN_DATABASE database=nowhere", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, Database: "nowhere"}))},
		{"UNKNOWN_DATABASE database=nowhere", second(f.ListReceipts(ctx, &pb.ListReceiptsRequest{Database: "nowhere"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: "nobody"}))},
		{"UNKNOWN_WORKER worker=some one", second(f.RunBatch(ctx, &pb.RunBatchRequest{Worker: "some one"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.GetStatus(ctx, &pb.GetStatusRequest{Worker: "nobody"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.ListLeases(ctx, &pb.ListLeasesRequest{Worker: "nobody"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.ListRuns(ctx, &pb.ListRunsRequest{Worker: "nobody"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.ListFires(ctx, &pb.ListFiresRequest{Worker: "nobody"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Worker: "nobody", Reason: "r"}))},
		{"UNKNOWN_WORKER worker=nobody", second(f.ResumeWorker(ctx, &pb.ResumeWorkerRequest{Worker: "nobody"}))},
		{"worker", second(f.ResumeWorker(ctx, &pb.ResumeWorkerRequest{}))},
		{"worker", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Reason: "r"}))},
		{"reason", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Worker: worker}))},
		{"reason", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Worker: "nobody", Reason: strings.Repeat("r", 501)}))},
		{"reason", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Worker: worker, Reason: "a\x00"}))},
		{"id", second(f.GetRun(ctx, &pb.GetRunRequest{}))},
		{"UNKNOWN_RUN run_id=nope", second(f.GetRun(ctx, &pb.GetRunRequest{Id: "nope"}))},
		{"UNKNOWN_RUN run_id=nope", second(f.CancelRun(ctx, &pb.CancelRunRequest{Id: "nope"}))},
	}
	for _, name := range []string{"", "Upper", "a-b", "No Flag", long, "a\n"} {
		all = append(all, refusal{"name", second(f.SetFeatureFlag(ctx, &pb.SetFeatureFlagRequest{Name: name}))})
	}
	for _, ttl := range []*durationpb.Duration{
		{}, {Seconds: -1}, {Nanos: 1}, {Nanos: 999_999_999}, {Seconds: 1, Nanos: -1}, {Seconds: 366 * 86400}, {Seconds: 1 << 40},
	} {
		all = append(all, refusal{"ttl", second(f.PauseWorker(ctx, &pb.PauseWorkerRequest{Worker: "nobody", Reason: "r", Ttl: ttl}))})
	}
	return append(all, wrongListsAndTargets(ctx, f)...)
}

// wrongListsAndTargets are those of lists, jobs, and what is deleted or kept.
func wrongListsAndTargets(ctx context.Context, f *fixture) []refusal {
	years := durationpb.New(11 * 365 * 24 * time.Hour)
	return []refusal{
		{"page_size", second(f.ListRuns(ctx, &pb.ListRunsRequest{Worker: "nobody", PageSize: -1}))},
		{"page_size", second(f.ListRuns(ctx, &pb.ListRunsRequest{PageSize: math.MinInt32}))},
		{"page_token", second(f.ListRuns(ctx, &pb.ListRunsRequest{PageToken: "x"}))},
		{"state", second(f.ListRuns(ctx, &pb.ListRunsRequest{State: 99}))},
		{"since", second(f.ListRuns(ctx, &pb.ListRunsRequest{Worker: "nobody", Since: &timestamppb.Timestamp{Seconds: math.MaxInt64}}))},
		{"until", second(f.ListRuns(ctx, &pb.ListRunsRequest{Until: &timestamppb.Timestamp{Seconds: math.MinInt64}}))},
		{"until", second(f.ListRuns(ctx, &pb.ListRunsRequest{Since: &timestamppb.Timestamp{Seconds: 2}, Until: &timestamppb.Timestamp{Seconds: 1}}))},
		{"until", second(f.ListJobs(ctx, &pb.ListJobsRequest{Until: &timestamppb.Timestamp{Nanos: 1_000_000_000}}))},
		{"page_size", second(f.ListLeases(ctx, &pb.ListLeasesRequest{PageSize: -1}))},
		{"page_token", second(f.ListLeases(ctx, &pb.ListLeasesRequest{Worker: "nobody", PageToken: "x"}))},
		{"page_size", second(f.ListFires(ctx, &pb.ListFiresRequest{PageSize: -1}))},
		{"page_token", second(f.ListFires(ctx, &pb.ListFiresRequest{Worker: "nobody", PageToken: "x"}))},
		{"outcome", second(f.ListFires(ctx, &pb.ListFiresRequest{Outcome: 99}))},
		{"page_size", second(f.ListJobs(ctx, &pb.ListJobsRequest{Id: 1, PageSize: -1}))},
		{"kind", second(f.ListJobs(ctx, &pb.ListJobsRequest{Kind: "delete_everything"}))},
		{"state", second(f.ListJobs(ctx, &pb.ListJobsRequest{State: "JOB_STATE_LOST"}))},
		{"state", second(f.ListJobs(ctx, &pb.ListJobsRequest{State: "completed", JobState: pb.JobState_JOB_STATE_COMPLETED}))},
		{"job_state", second(f.ListJobs(ctx, &pb.ListJobsRequest{JobState: 99}))},
		{"id", second(f.GetJob(ctx, &pb.GetJobRequest{}))},
		{"id", second(f.UnprotectTarget(ctx, &pb.UnprotectTargetRequest{Kind: "user"}))},
		{"id", second(f.RetryJob(ctx, &pb.RetryJobRequest{}))},
		{"id", second(f.CancelJob(ctx, &pb.CancelJobRequest{Reason: "r"}))},
		{"reason", second(f.CancelJob(ctx, &pb.CancelJobRequest{Id: 1}))},
		{"reason", second(f.CancelJob(ctx, &pb.CancelJobRequest{Id: 1, Reason: "  "}))},
		{"run_id", second(f.ListOutside(ctx, &pb.ListOutsideRequest{RunId: "x"}))},
		{"run_id", second(f.ListOutside(ctx, &pb.ListOutsideRequest{RunId: aRun, JobId: 1}))},
		{"job_id", second(f.ListOutside(ctx, &pb.ListOutsideRequest{JobId: -1}))},
		{"page_size", second(f.ListOutside(ctx, &pb.ListOutsideRequest{PageSize: -1}))},
		{"page_token", second(f.ListOutside(ctx, &pb.ListOutsideRequest{PageToken: "x"}))},
		{"ids", second(f.AckOutside(ctx, &pb.AckOutsideRequest{}))},
		{"ids", second(f.AckOutside(ctx, &pb.AckOutsideRequest{Ids: make([]int64, 1001)}))},
		{"run_id", second(f.ListReceipts(ctx, &pb.ListReceiptsRequest{RunId: "x"}))},
		{"key", second(f.ListReceipts(ctx, &pb.ListReceiptsRequest{Key: "\x00"}))},
		{"table", second(f.ListReceipts(ctx, &pb.ListReceiptsRequest{Table: "a\x00"}))},
		{"page_token", second(f.ListReceipts(ctx, &pb.ListReceiptsRequest{PageToken: "x"}))},
		{"since", second(f.ListAudit(ctx, &pb.ListAuditRequest{Since: &timestamppb.Timestamp{Nanos: -1}}))},
		{"page_size", second(f.ListAudit(ctx, &pb.ListAuditRequest{PageSize: -1}))},
		{"page_size", second(f.ListFeatureFlags(ctx, &pb.ListFeatureFlagsRequest{PageSize: -1}))},
		{"kind", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Id: 1, Reason: "x"}))},
		{"kind", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Kind: "placeholder", Id: 1, Reason: "x"}))},
		{"kind", second(f.ListProtected(ctx, &pb.ListProtectedRequest{Kind: "project"}))},
		{"id", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Kind: "user", Reason: "x"}))},
		{"reason", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Kind: "user", Id: 1, Reason: " "}))},
		{"reason", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Kind: "user", Id: 1, Reason: strings.Repeat("x", 501)}))},
		{"ttl", second(f.ProtectTarget(ctx, &pb.ProtectTargetRequest{Kind: "user", Id: 1, Reason: "x", Ttl: years}))},
		{"kind", second(f.PlanDeletion(ctx, &pb.PlanDeletionRequest{Id: 5}))},
		{"kind", second(f.PlanDeletion(ctx, &pb.PlanDeletionRequest{Kind: "project", Id: 5}))},
		{"id", second(f.PlanDeletion(ctx, &pb.PlanDeletionRequest{Kind: "user"}))},
	}
}

func TestRequests_WhatIsWrongWithThemselvesComesBeforeAnyState(t *testing.T) {
	for state, prepare := range map[string]func(f *fixture){
		"not configured": func(*fixture) {},
		"paused": func(f *fixture) {
			f.exec(`INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', 'r', 'b')`)
		},
		"lease held": func(f *fixture) {
			f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
				SELECT n, 'other', 1, now(), now(), 'infinity' FROM unnest(ARRAY[$1 || '/main', 'ghost_user_migration']) n`, worker)
		},
		"main is down": func(f *fixture) { f.main.Close() },
	} {
		t.Run(state, func(t *testing.T) {
			configured := definitions
			if state == "not configured" {
				configured = ""
			}
			f := startWith(t, configured, insecure.NewCredentials())
			prepare(f)
			for _, r := range wrongRequests(t.Context(), f) {
				f.refused(r)
			}
		})
	}
}

// refused fails the test unless a call is refused as is wanted.
func (f *fixture) refused(r refusal) {
	f.t.Helper()
	reason, metadata, unknown := strings.Cut(r.want, " ")
	if !unknown {
		f.violates(r.err, r.want)
		return
	}
	key, name, _ := strings.Cut(metadata, "=")
	info := detail[*errdetails.ErrorInfo](f.failure(r.err, codes.NotFound, reason))
	got := info.GetMetadata()
	assert.That(f.t, len(got) == 1 && got[key] == name, "%s: got %v", r.want, got)
}

func TestRequests_NamesThatAreUnknownAreInTheMetadata(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	const id = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4"
	long := strings.Repeat("x", 120)
	watch := func(id string) error {
		stream, err := f.WatchRun(ctx, &pb.WatchRunRequest{Id: id})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for _, r := range []refusal{
		{"UNKNOWN_RUN run_id=" + id, second(f.GetRun(ctx, &pb.GetRunRequest{Id: id}))},
		{"UNKNOWN_RUN run_id=" + id, second(f.CancelRun(ctx, &pb.CancelRunRequest{Id: id}))},
		{"UNKNOWN_RUN run_id=" + id, watch(id)},
		{"UNKNOWN_RUN run_id=nope", watch("nope")},
		{"UNKNOWN_RUN run_id=a\x00", watch("a\x00")},
		{"UNKNOWN_RUN run_id=a\x00", second(f.GetRun(ctx, &pb.GetRunRequest{Id: "a\x00"}))},
		{"UNKNOWN_RUN run_id=a\x00", second(f.CancelRun(ctx, &pb.CancelRunRequest{Id: "a\x00"}))},
		{"UNKNOWN_JOB job_id=75", second(f.ListJobs(ctx, &pb.ListJobsRequest{Id: 75}))},
		{"UNKNOWN_JOB job_id=77", second(f.RetryJob(ctx, &pb.RetryJobRequest{Id: 77}))},
		{"UNKNOWN_JOB job_id=78", second(f.GetJob(ctx, &pb.GetJobRequest{Id: 78}))},
		{"UNKNOWN_JOB job_id=79", second(f.CancelJob(ctx, &pb.CancelJobRequest{Id: 79, Reason: "r"}))},
		{"UNKNOWN_PATH ids=8,9", second(f.AckOutside(ctx, &pb.AckOutsideRequest{Ids: []int64{9, 8, 9}}))},
		{"UNKNOWN_FLAG flag=" + long, second(f.SetFeatureFlag(ctx, &pb.SetFeatureFlagRequest{Name: long}))},
		{"UNKNOWN_PROTECTION target=user 9", second(f.UnprotectTarget(ctx, &pb.UnprotectTargetRequest{Kind: "user", Id: 9}))},
	} {
		f.refused(r)
	}
	// Clients accept 8 kB of metadata.
	var ids []int64
	for n := range int64(1000) {
		ids = append(ids, math.MaxInt64-n)
	}
	s := f.failure(second(f.AckOutside(ctx, &pb.AckOutsideRequest{Ids: ids})), codes.NotFound, "UNKNOWN_PATH")
	assert.That(t, proto.Size(s.Proto()) < 2000 && strings.Contains(s.Message(), " and 990 more, so no path was "+
		"marked"), "%v", s)
	// A flag that is not ours, but in the table, can be set.
	set := func(name string) error {
		return second(f.SetFeatureFlag(ctx, &pb.SetFeatureFlagRequest{Name: name}))
	}
	s = f.failure(set("loose_foreign_keys_turbo_mode_mian"), codes.NotFound, "UNKNOWN_FLAG")
	if want := `unknown flag "loose_foreign_keys_turbo_mode_mian": known flags are loose_foreign_keys_turbo_mode_main`; s.Message() != want {
		t.Errorf("got %s, want %s", s.Message(), want)
	}
	f.exec(`INSERT INTO maintenance.feature_flags (name, enabled) VALUES ('of_a_newer_server', true)`)
	assert.NoError(t, set("of_a_newer_server"))
	if err := second(f.ListJobs(ctx, &pb.ListJobsRequest{State: "x"})); !strings.Contains(err.Error(),
		"available, scheduled, retryable, running, completed, cancelled, discarded") {
		t.Errorf("%v does not say what is allowed", err)
	}
}

// brokenCodec sends what is not valid protobuf.
type brokenCodec struct{}

func (brokenCodec) Marshal(any) ([]byte, error) { return []byte{0xff}, nil }
func (brokenCodec) Unmarshal([]byte, any) error { return nil }
func (brokenCodec) Name() string                { return "proto" }

func TestRequests_ThatCannotBeDecodedAreTheFaultOfTheirClient(t *testing.T) {
	f := start(t, withTokens(t, ""))
	ctx, raw := as(t.Context(), "admin-token"), grpc.ForceCodec(brokenCodec{})
	for _, method := range everyMethod() {
		call := func(ctx context.Context) error {
			stream, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pathOf(method), raw)
			err = cmp.Or(err, stream.SendMsg(struct{}{}), stream.CloseSend())
			return cmp.Or(err, stream.RecvMsg(nil))
		}
		f.failure(call(t.Context()), codes.Unauthenticated, "UNAUTHENTICATED")
		f.failure(call(ctx), codes.InvalidArgument, "INVALID_ARGUMENT")
	}
	f.eventually("the calls are logged", func() bool {
		return strings.Count(f.log.String(), "cannot parse") >= len(everyMethod())
	})
	assert.Lacks(t, f.log.String(), `"level":"ERROR"`)
}

func TestLists_ATokenIsForTheSameListWithTheSameFilters(t *testing.T) {
	f := start(t)
	ctx, early := t.Context(), timestamppb.New(timeOf(t, "2000-01-01T00:00:00Z"))
	for range 2 {
		f.run(&pb.RunBatchRequest{})
	}
	f.queued(2, "delete_user", "available", `{"user_id": 1}`)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by) SELECT 'w', now() - i * interval '1 minute', '' FROM generate_series(1, 2) i`)
	runs := assert.Must(f.ListRuns(ctx, &pb.ListRunsRequest{PageSize: 1, Since: early}))(t).GetNextPageToken()
	jobs := assert.Must(f.ListJobs(ctx, &pb.ListJobsRequest{PageSize: 1, Since: early}))(t).GetNextPageToken()
	fires := assert.Must(f.ListFires(ctx, &pb.ListFiresRequest{PageSize: 1}))(t).GetNextPageToken()
	audit := assert.Must(f.ListAudit(ctx, &pb.ListAuditRequest{PageSize: 1}))(t).GetNextPageToken()
	noTime := assert.Must(newPage("fires", &pb.ListFiresRequest{PageSize: 1}, "", ""))(t).next("no time")
	for _, err := range []error{
		second(f.ListRuns(ctx, &pb.ListRunsRequest{PageToken: runs})),
		second(f.ListRuns(ctx, &pb.ListRunsRequest{PageToken: runs, Since: early, Worker: worker})),
		second(f.ListLeases(ctx, &pb.ListLeasesRequest{PageToken: runs})),
		second(f.ListJobs(ctx, &pb.ListJobsRequest{PageToken: jobs})),
		second(f.ListJobs(ctx, &pb.ListJobsRequest{PageToken: jobs, Since: early, State: "available"})),
		second(f.ListFires(ctx, &pb.ListFiresRequest{PageToken: fires, Outcome: pb.FireOutcome_FIRE_OUTCOME_RAN})),
		second(f.ListFires(ctx, &pb.ListFiresRequest{PageToken: noTime})),
		second(f.ListAudit(ctx, &pb.ListAuditRequest{PageToken: audit, Since: early})),
	} {
		f.violates(err, "page_token")
	}
	for _, err := range []error{
		second(f.ListRuns(ctx, &pb.ListRunsRequest{PageToken: runs, Since: early})),
		second(f.ListJobs(ctx, &pb.ListJobsRequest{PageToken: jobs, Since: early})),
		second(f.ListFires(ctx, &pb.ListFiresRequest{PageToken: fires})),
		second(f.ListAudit(ctx, &pb.ListAuditRequest{PageToken: audit})),
	} {
		assert.NoError(t, err)
	}
}

// Any token of a client is refused, or it is the one of this list with these filters.
func FuzzPageToken(f *testing.F) {
	own, err := newPage("runs", &pb.ListRunsRequest{}, "a")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own.next("7"), "a", "7")
	f.Add("", "", "")
	f.Add("!", "a", "b")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(own.list+"\n")), "a", "x\ny")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(own.list+"\n7\n8")), "\"a", "9223372036854775808")
	f.Fuzz(func(t *testing.T, token, filter, key string) {
		p, err := newPage("runs", &pb.ListRunsRequest{PageToken: token}, filter)
		if err == nil && token != "" {
			decoded, _ := base64.RawURLEncoding.DecodeString(token)
			assert.That(t, string(decoded) == p.list+"\n"+p.after,
				"%q was read as %q of %q", token, p.after, p.list)
			_, _ = p.afterNumber()
		}
		again, err := newPage("runs", &pb.ListRunsRequest{PageToken: p.next(key)}, filter)
		if ok := key != "" && printable("", key) == nil; (err == nil) != ok || ok && again.after != key {
			t.Errorf("the token behind %q leads behind %q: %v", key, again.after, err)
		}
		if _, err := newPage("runs", &pb.ListRunsRequest{PageToken: p.next("7")}, filter+"x"); err == nil {
			t.Error("a token is taken for a list with another filter")
		}
		if _, err := newPage("jobs", &pb.ListRunsRequest{PageToken: p.next("7")}, filter); err == nil {
			t.Error("a token is taken for another list")
		}
	})
}
