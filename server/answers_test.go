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

// clientTakes is what a gRPC client receives at most unless it says otherwise.
const clientTakes = 4 << 20

// paged is an answer with a page of a list.
type paged interface {
	proto.Message
	GetNextPageToken() string
}

// entries reads a list page by page to its end, and fails the test if a page is larger than was asked for or than a client
// takes, or is empty before the end.
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
		if want := fmt.Sprintf("00000000-0000-7000-8000-%012d", 80-i); r.GetId() != want {
			t.Fatalf("entry %d is %s, want %s", i, r.GetId(), want)
		}
		if !strings.HasSuffix(r.GetError(), "ä… (97952 bytes more: GetRun)") || !strings.HasSuffix(r.GetReason(), "r… (2952 bytes more: GetRun)") {
			t.Errorf("error %s", r.GetError())
		}
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
	if err != nil || !strings.HasSuffix(answer.GetRun().GetError(), " bytes more: maintenance.runs has them)") {
		t.Errorf("%d bytes, %v", proto.Size(answer), err)
	}
}

func TestLists_NoPageIsTooLargeForAClient(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.river_job (kind, args, state, max_attempts, attempt, errors)
		SELECT 'delete_user', '{"user_id": 1}', 'retryable', 25, 25,
			(SELECT array_agg(jsonb_build_object('at', now(), 'attempt', a, 'error', repeat('e', 6000))) FROM generate_series(1, 25) a)
		FROM generate_series(1, 120)`)
	jobs := entries(f, f.ListJobs, &maintenancev1.ListJobsRequest{PageSize: 1000}, (*maintenancev1.ListJobsResponse).GetJobs)
	for _, j := range jobs {
		if said := j.GetErrors()[24].GetError(); !strings.HasSuffix(said, "e… (3952 bytes more: ListJobs with its id (caretaker jobs show ID))") {
			t.Errorf("error %s", said)
		}
	}
	assert.Equal(t, len(jobs), 120, "jobs")
	answer := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{Id: 1}))(t)
	assert.Equal(t, answer.GetJobs()[0].GetErrors()[0].GetError(), strings.Repeat("e", 6000))
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, reason)
		SELECT $1, now() - i * interval '1 minute', '', 'skipped', repeat('r', 9000) FROM generate_series(1, 600) i`, worker)
	fires := entries(f, f.ListFires, &maintenancev1.ListFiresRequest{PageSize: 1000}, (*maintenancev1.ListFiresResponse).GetFires)
	assert.Equal(t, len(fires), 600, "fires")
}
