package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// clientTakes is what a gRPC client receives at most unless it says otherwise.
const clientTakes = 4 << 20

// pages reads a list to its end, and fails the test if a page is too large or empty.
func pages[M proto.Message](f *fixture, read func(token string) (M, []string, string, error)) (keys []string) {
	f.t.Helper()
	for token := ""; ; {
		answer, found, next, err := read(token)
		if err != nil {
			f.t.Fatal(err)
		}
		if size := proto.Size(answer); size > clientTakes || len(found) == 0 {
			f.t.Errorf("a page of %d entries has %d bytes", len(found), size)
		}
		if keys = append(keys, found...); next == "" {
			return keys
		}
		token = next
	}
}

func TestListRuns_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	// Long errors, and dry runs of many definitions.
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, finished_at, error, reason, definitions)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'request', 'failed', interval '1 minute', now(), repeat('ä', 50000), repeat('r', 5000),
			(SELECT jsonb_agg(jsonb_build_object('table', repeat('t', 60), 'column', repeat('c', 60), 'parent', 'p', 'action', 'async_delete')) FROM generate_series(1, 400))
		FROM generate_series(1, 80) i`, worker)
	keys := pages(f, func(token string) (*maintenancev1.ListRunsResponse, []string, string, error) {
		answer, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{PageSize: 1000, PageToken: token})
		var ids []string
		for _, r := range answer.GetRuns() {
			ids = append(ids, r.GetId())
			if !strings.HasSuffix(r.GetError(), "ä… (97952 bytes more: GetRun)") || !strings.HasSuffix(r.GetReason(), "r… (2952 bytes more: GetRun)") {
				t.Errorf("error %s", r.GetError())
			}
		}
		return answer, ids, answer.GetNextPageToken(), err
	})
	for i, id := range keys {
		if want := fmt.Sprintf("00000000-0000-7000-8000-%012d", 80-i); id != want {
			t.Fatalf("entry %d is %s, want %s", i, id, want)
		}
	}
	if len(keys) != 80 {
		t.Errorf("%d runs, want 80", len(keys))
	}
	answer, err := f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: keys[0]})
	if err != nil || answer.GetRun().GetError() != strings.Repeat("ä", 50000) {
		t.Errorf("error of %d bytes, %v", len(answer.GetRun().GetError()), err)
	}
	status, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker})
	if err != nil || proto.Size(status) > 1<<20 {
		t.Errorf("a status of %d bytes, %v", proto.Size(status), err)
	}
}

func TestGetRun_OneThatIsTooLongForAClientIsCut(t *testing.T) {
	f := start(t)
	const id = "00000000-0000-7000-8000-000000000001"
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, finished_at, error)
		VALUES ($1::text::uuid, $2, 'request', 'failed', interval '1 minute', now(), repeat('x', 5000000))`, id, worker)
	answer, err := f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: id})
	if err != nil || !strings.HasSuffix(answer.GetRun().GetError(), " bytes more: maintenance.runs has them)") {
		t.Errorf("%d bytes, %v", proto.Size(answer), err)
	}
}

func TestListJobs_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.river_job (kind, args, state, max_attempts, attempt, errors)
		SELECT 'delete_user', '{"user_id": 1}', 'retryable', 25, 25,
			(SELECT array_agg(jsonb_build_object('at', now(), 'attempt', a, 'error', repeat('e', 6000))) FROM generate_series(1, 25) a)
		FROM generate_series(1, 120)`)
	keys := pages(f, func(token string) (*maintenancev1.ListJobsResponse, []string, string, error) {
		answer, err := f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{PageSize: 1000, PageToken: token})
		var ids []string
		for _, j := range answer.GetJobs() {
			ids = append(ids, fmt.Sprint(j.GetId()))
			if said := j.GetErrors()[24].GetError(); !strings.HasSuffix(said, "e… (3952 bytes more: ListJobs with its id (caretaker jobs show ID))") {
				t.Errorf("error %s", said)
			}
		}
		return answer, ids, answer.GetNextPageToken(), err
	})
	if len(keys) != 120 {
		t.Errorf("%d jobs, want 120", len(keys))
	}
	answer, err := f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{Id: 1})
	if err != nil || answer.GetJobs()[0].GetErrors()[0].GetError() != strings.Repeat("e", 6000) {
		t.Errorf("%d bytes, %v", proto.Size(answer), err)
	}
}

func TestListFires_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, reason)
		SELECT $1, now() - i * interval '1 minute', '', 'skipped', repeat('r', 9000) FROM generate_series(1, 600) i`, worker)
	keys := pages(f, func(token string) (*maintenancev1.ListFiresResponse, []string, string, error) {
		answer, err := f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{PageSize: 1000, PageToken: token})
		var times []string
		for _, fire := range answer.GetFires() {
			times = append(times, fire.GetFireTime().AsTime().Format(time.RFC3339Nano))
		}
		return answer, times, answer.GetNextPageToken(), err
	})
	if len(keys) != 600 {
		t.Errorf("%d fires, want 600", len(keys))
	}
}

// TestRequests_WhatIsWrongWithThemselvesComesBeforeAnyState asks for what is wrong of a worker that is not configured,
// paused and at work, and of a main that is down.
func TestRequests_WhatIsWrongWithThemselvesComesBeforeAnyState(t *testing.T) {
	long := strings.Repeat("x", 2000)
	const ghosts = "ghost_user_migration"
	calls := func(f *fixture, ctx context.Context) map[string]error {
		return map[string]error{
			"INVALID_ARGUMENT request_id":   second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, RequestId: long})),
			"INVALID_ARGUMENT request_id 2": second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: "nobody", RequestId: long})),
			"INVALID_ARGUMENT request_id 3": second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, RequestId: "a\nb"})),
			"INVALID_ARGUMENT database":     second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: ghosts, Database: "main"})),
			"INVALID_ARGUMENT database 2":   second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: ghosts, Database: "main", RequestId: "used"})),
			"INVALID_ARGUMENT worker":       second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{})),
			"UNKNOWN_DATABASE":              second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, Database: "nowhere"})),
			"UNKNOWN_WORKER":                second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: "nobody"})),
			"UNKNOWN_WORKER status":         second(f.GetStatus(ctx, &maintenancev1.GetStatusRequest{Worker: "nobody"})),
			"UNKNOWN_WORKER leases":         second(f.ListLeases(ctx, &maintenancev1.ListLeasesRequest{Worker: "nobody"})),
			"UNKNOWN_WORKER runs":           second(f.ListRuns(ctx, &maintenancev1.ListRunsRequest{Worker: "nobody"})),
			"UNKNOWN_WORKER fires":          second(f.ListFires(ctx, &maintenancev1.ListFiresRequest{Worker: "nobody"})),
			"UNKNOWN_WORKER pause":          second(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: "nobody", Reason: "r"})),
			"UNKNOWN_WORKER resume":         second(f.ResumeWorker(ctx, &maintenancev1.ResumeWorkerRequest{Worker: "nobody"})),
			"UNKNOWN_RUN":                   second(f.GetRun(ctx, &maintenancev1.GetRunRequest{Id: "nothing"})),
			"UNKNOWN_RUN cancel":            second(f.CancelRun(ctx, &maintenancev1.CancelRunRequest{Id: "nothing"})),
			"INVALID_ARGUMENT reason":       second(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: "nobody", Reason: long})),
			"INVALID_ARGUMENT ttl":          second(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: "nobody", Reason: "r", Ttl: durationpb.New(time.Nanosecond)})),
			"INVALID_ARGUMENT page_size":    second(f.ListJobs(ctx, &maintenancev1.ListJobsRequest{Id: 1, PageSize: -1})),
			"INVALID_ARGUMENT page_size 2":  second(f.ListRuns(ctx, &maintenancev1.ListRunsRequest{Worker: "nobody", PageSize: -1})),
			"INVALID_ARGUMENT page_token":   second(f.ListFires(ctx, &maintenancev1.ListFiresRequest{Worker: "nobody", PageToken: "x"})),
			"INVALID_ARGUMENT page_token 2": second(f.ListLeases(ctx, &maintenancev1.ListLeasesRequest{Worker: "nobody", PageToken: "x"})),
			"INVALID_ARGUMENT kind":         second(f.ListJobs(ctx, &maintenancev1.ListJobsRequest{Kind: "nothing"})),
			"INVALID_ARGUMENT id":           second(f.RetryJob(ctx, &maintenancev1.RetryJobRequest{})),
			"INVALID_ARGUMENT name":         second(f.SetFeatureFlag(ctx, &maintenancev1.SetFeatureFlagRequest{Name: "No Flag"})),
		}
	}
	for state, prepare := range map[string]func(f *fixture){
		"not configured": func(*fixture) {},
		"paused": func(f *fixture) {
			f.exec(`INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', 'r', 'b')`)
		},
		"lease held": func(f *fixture) {
			f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
				SELECT n, 'other', 1, now(), now(), 'infinity' FROM unnest(ARRAY[$1 || '/main', $2]) n`, worker, ghosts)
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
			for want, err := range calls(f, t.Context()) {
				reason, rest, _ := strings.Cut(want, " ")
				if field, _, _ := strings.Cut(rest, " "); reason == "INVALID_ARGUMENT" {
					f.violates(err, field)
				} else {
					f.failure(err, codes.NotFound, reason)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestRunBatch_SaysWhichRunHasUsedTheRequestID(t *testing.T) {
	f := start(t)
	first, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, RequestId: "once"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, RequestId: "once", DryRun: true})
	info := detail[*errdetails.ErrorInfo](f.failure(err, codes.AlreadyExists, "REQUEST_ID_REUSED")).GetMetadata()
	if info["run_id"] != first.GetRun().GetId() || info["worker"] != worker || info["dry_run"] != "false" {
		t.Errorf("got the metadata %v", info)
	}
}

func TestFeatureFlags_AreSetAndListed(t *testing.T) {
	f := start(t)
	const name = "loose_foreign_keys_turbo_mode_main"
	set, err := f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{Name: name, Enabled: true})
	if err != nil || !set.GetFlag().GetEnabled() {
		t.Fatalf("got %v, %v", set, err)
	}
	list, err := f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{})
	if err != nil || len(list.GetFlags()) != 1 || list.GetFlags()[0].GetName() != name || !list.GetFlags()[0].GetEnabled() {
		t.Errorf("got %v, %v", list, err)
	}
	if run := f.run(&maintenancev1.RunBatchRequest{}); !run.GetTurboMode() {
		t.Errorf("got %v", run)
	}
	for _, bad := range []string{"", "Upper", "a-b", strings.Repeat("a", 129), "a\n"} {
		_, err := f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{Name: bad})
		f.violates(err, "name")
	}
}
