package server

import (
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

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
	missed, err := f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{Outcome: maintenancev1.FireOutcome_FIRE_OUTCOME_MISSED})
	if err != nil || len(missed.GetFires()) != 10 || missed.GetFires()[0].GetLate() != nil || missed.GetFires()[0].GetClaimedAt() != nil {
		t.Errorf("got %v, %v", missed, err)
	}
}
