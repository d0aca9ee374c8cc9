package server

import (
	"fmt"
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

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
	if r.GetDatabase() != "main" || r.GetAt() == nil || r.GetRows() != 10 || r.GetLowestKey() != "200" || r.GetKeysDigest() != "64" ||
		r.GetHash() != "68" || r.GetRequestedBy() != "alice" || r.GetAction() != "deleted" || len(r.GetKeys()) != 1 {
		t.Errorf("%v", r)
	}
}
