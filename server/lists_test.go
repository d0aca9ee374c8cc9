package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestListFeatureFlags_ComeInPages(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.feature_flags (name, enabled) SELECT 'f_' || lpad(i::text, 3, '0'), i % 2 = 0 FROM generate_series(1, 120) i`)
	for size, wantPages := range map[int32]int{0: 3, 7: 18, 121: 1, 120: 2, 1 << 30: 1} {
		request := &maintenancev1.ListFeatureFlagsRequest{PageSize: size}
		read := 0
		list := func(ctx context.Context, r *maintenancev1.ListFeatureFlagsRequest, o ...grpc.CallOption) (*maintenancev1.ListFeatureFlagsResponse, error) {
			read++
			return f.ListFeatureFlags(ctx, r, o...)
		}
		flags := entries(f, list, request, (*maintenancev1.ListFeatureFlagsResponse).GetFlags)
		for i, flag := range flags {
			if n := strings.TrimPrefix(flag.GetName(), "f_"); n != flag.GetName() && flag.GetEnabled() != strings.ContainsAny(n[2:], "02468") {
				t.Errorf("flag %d: %v", i, flag)
			}
		}
		if len(flags) != 121 || flags[0].GetName() != "f_001" || flags[119].GetName() != "f_120" || read != wantPages {
			t.Errorf("by %d: %d flags in %d pages", size, len(flags), read)
		}
	}
}

func TestPageSize_AboveTheMaximumIsTheMaximum(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by) SELECT 'w', now() - i * interval '1 minute', '' FROM generate_series(1, 1005) i`)
	for _, size := range []int32{1000, 1001, 1 << 30} {
		answer := assert.Must(f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{PageSize: size}))(t)
		assert.That(t, len(answer.GetFires()) == 1000 && answer.GetNextPageToken() != "",
			"%d: got %d fires", size, len(answer.GetFires()))
	}
	for what, err := range map[string]error{
		"leases":    second(f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{PageSize: 5000})),
		"runs":      second(f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{PageSize: 5000})),
		"jobs":      second(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{PageSize: 5000})),
		"protected": second(f.ListProtected(t.Context(), &maintenancev1.ListProtectedRequest{PageSize: 5000})),
		"outside":   second(f.ListOutside(t.Context(), &maintenancev1.ListOutsideRequest{PageSize: 5000})),
		"audit":     second(f.ListAudit(t.Context(), &maintenancev1.ListAuditRequest{PageSize: 5000})),
	} {
		if err != nil {
			t.Error(fmt.Errorf("%s: %w", what, err))
		}
	}
}

func TestFeatureFlags_AreSetAndListed(t *testing.T) {
	f := start(t)
	const name = "loose_foreign_keys_turbo_mode_main"
	set := assert.Must(f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{Name: name, Enabled: true}))(t)
	assert.Equal(t, set.GetFlag().GetEnabled(), true)
	list := assert.Must(f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{}))(t)
	assert.That(t, len(list.GetFlags()) == 1 && list.GetFlags()[0].GetName() == name &&
		list.GetFlags()[0].GetEnabled(), "got %v", list)
	assert.Equal(t, f.run(&maintenancev1.RunBatchRequest{}).GetTurboMode(), true)
}

func TestListFires_PagesThroughTheLedger(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, outcome, reason, run_id, claimed_by, claimed_at, started_at)
		SELECT w, '2026-11-21 00:00Z'::timestamptz + i * interval '1 minute', 'missed', '', NULL::uuid, '', NULL::timestamptz, NULL::timestamptz
		FROM generate_series(1, 5) i, unnest(ARRAY['ghost_user_migration', 'loose_foreign_keys_cleanup']) w
		UNION ALL SELECT 'ghost_user_migration', '2026-11-21 01:00Z', 'ran', 'CAUGHT_UP', '0198c0de-0000-7000-8000-000000000001', 'here',
		  '2026-11-21 01:00:01Z', '2026-11-21 01:00:01.25Z'`)
	fires := entries(f, f.ListFires, &maintenancev1.ListFiresRequest{PageSize: 3}, (*maintenancev1.ListFiresResponse).GetFires)
	got := joined(fires, func(f *maintenancev1.Fire) string {
		return f.GetFireTime().AsTime().Format("15:04") + " " + f.GetWorker()[:5]
	})
	want := "01:00 ghost 00:05 loose 00:05 ghost 00:04 loose 00:04 ghost 00:03 loose 00:03 ghost 00:02 loose 00:02 ghost 00:01 loose 00:01 ghost"
	assert.Equal(t, got, want)
	answer := assert.Must(f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{
		Worker: "ghost_user_migration", Outcome: maintenancev1.FireOutcome_FIRE_OUTCOME_RAN,
	}))(t)
	assert.Require(t, len(answer.GetFires()) == 1, "%v", answer)
	fire := answer.GetFires()[0]
	if fire.GetLate().AsDuration().Seconds() != 1.25 || fire.GetReason() != "CAUGHT_UP" || fire.GetClaimedBy() != "here" ||
		fire.GetRunId() == "" || fire.GetClaimedAt() == nil || fire.GetStartedAt() == nil || fire.GetOutcome() != maintenancev1.FireOutcome_FIRE_OUTCOME_RAN {
		t.Errorf("got %v", fire)
	}
	missed := assert.Must(f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{Outcome: maintenancev1.FireOutcome_FIRE_OUTCOME_MISSED}))(t)
	assert.That(t, len(missed.GetFires()) == 10 && missed.GetFires()[0].GetLate() == nil &&
		missed.GetFires()[0].GetClaimedAt() == nil, "got %v", missed)
}

// clientTakes is what a gRPC client receives at most unless it reports otherwise.
const clientTakes = 4 << 20

// paged is an answer with a page of a list.
type paged interface {
	proto.Message
	GetNextPageToken() string
}

// entries reads a list page by page to its end. It fails the test if a page is larger than
// requested or than a client takes, or is empty before the end.
func entries[Q proto.Message, R paged, E any](
	f *fixture, list func(context.Context, Q, ...grpc.CallOption) (R, error), request Q, of func(R) []E,
) (all []E) {
	f.t.Helper()
	fields := request.ProtoReflect().Descriptor().Fields()
	most := request.ProtoReflect().Get(fields.ByName("page_size")).Int()
	for {
		answer := assert.Must(list(f.t.Context(), request))(f.t)
		found, next := of(answer), answer.GetNextPageToken()
		if size := proto.Size(answer); size > clientTakes || len(found) == 0 && next != "" || most > 0 && int64(len(found)) > most {
			f.t.Errorf("a page of %d entries has %d bytes", len(found), size)
		}
		if all = append(all, found...); next == "" {
			return all
		}
		request.ProtoReflect().Set(fields.ByName("page_token"), protoreflect.ValueOfString(next))
	}
}

// joined are the texts of entries, such as their ids.
func joined[E any](all []E, text func(E) string) string {
	var texts []string
	for _, e := range all {
		texts = append(texts, text(e))
	}
	return strings.Join(texts, " ")
}

func TestListRuns_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	// Long errors, and dry runs of many definitions.
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, finished_at, error, reason, definitions)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'request', 'failed', interval '1 minute', now(), repeat('ä', 50000), repeat('r', 5000),
			(SELECT jsonb_agg(jsonb_build_object('table', repeat('t', 60), 'column', repeat('c', 60), 'parent', 'p', 'action', 'async_delete')) FROM generate_series(1, 400))
		FROM generate_series(1, 80) i`, worker)
	runs := entries(f, f.ListRuns, &maintenancev1.ListRunsRequest{PageSize: 1000}, (*maintenancev1.ListRunsResponse).GetRuns)
	for i, r := range runs {
		want := fmt.Sprintf("00000000-0000-7000-8000-%012d", 80-i)
		assert.Require(t, r.GetId() == want, "entry %d is %s, want %s", i, r.GetId(), want)
		assert.That(t, strings.HasSuffix(r.GetError(), "ä… (97952 bytes more: see the run)") &&
			strings.HasSuffix(r.GetReason(), "r… (2952 bytes more: see the run)"), "a text of entry %d ends unlike the others", i)
	}
	assert.Equal(t, len(runs), 80, "runs")
	answer := assert.Must(f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: runs[0].GetId()}))(t)
	assert.Equal(t, answer.GetRun().GetError(), strings.Repeat("ä", 50000))
	status, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker})
	if err != nil || proto.Size(status) > 1<<20 {
		t.Errorf("a status of %d bytes, %v", proto.Size(status), err)
	}
	const id = "00000000-0000-7000-8000-000000000099"
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, finished_at, error)
		VALUES ($1::text::uuid, $2, 'request', 'failed', interval '1 minute', now(), repeat('x', 5000000))`, id, worker)
	answer, err = f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: id})
	if err != nil || !strings.HasSuffix(answer.GetRun().GetError(), " bytes more: see the table maintenance.runs)") {
		t.Errorf("%d bytes, %v", proto.Size(answer), err)
	}
}

func TestLists_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.river_job (kind, args, state, max_attempts, attempt, errors)
		SELECT 'delete_user', '{"user_id": 1}', 'retryable', 25, 25,
			(SELECT array_agg(jsonb_build_object('at', now(), 'attempt', a, 'error', repeat('e', 2500))) FROM generate_series(1, 25) a)
		FROM generate_series(1, 90)`)
	jobs := entries(f, f.ListJobs, &maintenancev1.ListJobsRequest{PageSize: 1000}, (*maintenancev1.ListJobsResponse).GetJobs)
	for _, j := range jobs {
		if said := j.GetErrors()[24].GetError(); !strings.HasSuffix(said, "e… (452 bytes more: see the job)") {
			t.Errorf("error %s", said)
		}
	}
	assert.Equal(t, len(jobs), 90, "jobs")
	answer := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{Id: 1}))(t)
	assert.Equal(t, answer.GetJobs()[0].GetErrors()[0].GetError(), strings.Repeat("e", 2500))
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, reason)
		SELECT $1, now() - i * interval '1 minute', '', 'skipped', repeat('r', 9000) FROM generate_series(1, 600) i`, worker)
	fires := entries(f, f.ListFires, &maintenancev1.ListFiresRequest{PageSize: 1000}, (*maintenancev1.ListFiresResponse).GetFires)
	assert.Equal(t, len(fires), 600, "fires")
}

func TestListReceipts_APageHasABoundOfKeys(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash)
		SELECT i, now(), 7, 'w', 't', 'deleted', 'r', 40000, '1', '40000', 'd', ARRAY(SELECT k::text FROM generate_series(1, 40000) k), 'alice', 'h' FROM generate_series(1, 5) i`)
	for _, key := range []string{"", "40000"} {
		var pages []int
		for token := ""; len(pages) == 0 || token != ""; {
			request := &maintenancev1.ListReceiptsRequest{PageSize: 100, Table: "t", Key: key, PageToken: token}
			answer := assert.Must(f.ListReceipts(t.Context(), request))(t)
			pages, token = append(pages, len(answer.GetReceipts())), answer.GetNextPageToken()
		}
		assert.Equal(t, fmt.Sprint(pages), "[3 2]", "pages of", pages)
	}
}

func TestListReceipts_PagesThroughThemWithFilters(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, run_id, job_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, keys, requested_by, hash)
		SELECT i, now(), CASE WHEN i % 2 = 0 THEN '0190a1b2-0000-7000-8000-000000000001'::uuid END, CASE WHEN i % 2 = 1 THEN 7 END, 'w', 't' || i % 3, 'deleted', 'r', 10,
		10 * i, 10 * i + 9, 'd', CASE WHEN i > 15 THEN ARRAY[(10 * i)::text] END, 'alice', 'h' FROM generate_series(1, 20) i`)
	for _, c := range []struct {
		request *maintenancev1.ListReceiptsRequest
		want    string
	}{
		{&maintenancev1.ListReceiptsRequest{Table: "t0"}, "18 15 12 9 6 3"},
		{&maintenancev1.ListReceiptsRequest{Table: "t0", RunId: "0190a1b2-0000-7000-8000-000000000001"}, "18 12 6"},
		{&maintenancev1.ListReceiptsRequest{Database: "main", JobId: 7, Table: "t1"}, "19 13 7 1"},
		{&maintenancev1.ListReceiptsRequest{Table: "t0", Key: "95"}, "9"},
		{&maintenancev1.ListReceiptsRequest{Table: "t0", Key: "180"}, "18"},
		{&maintenancev1.ListReceiptsRequest{Table: "t0", Key: "181"}, ""},
		{&maintenancev1.ListReceiptsRequest{Table: "nowhere"}, ""},
	} {
		c.request.PageSize = 3
		got := joined(entries(f, f.ListReceipts, c.request, (*maintenancev1.ListReceiptsResponse).GetReceipts), func(r *maintenancev1.Receipt) string {
			return fmt.Sprint(r.GetSequence())
		})
		assert.Equal(t, got, c.want, c.request)
	}
	one := assert.Must(f.ListReceipts(t.Context(), &maintenancev1.ListReceiptsRequest{PageSize: 1}))(t)
	r := one.GetReceipts()[0]
	assert.That(t, r.GetDatabase() == "main" && r.GetAt() != nil && r.GetRows() == 10 &&
		r.GetLowestKey() == "200" && r.GetKeysDigest() == "64" && r.GetHash() == "68" &&
		r.GetRequestedBy() == "alice" && r.GetAction() == "deleted" && len(r.GetKeys()) == 1, "%v", r)
}
