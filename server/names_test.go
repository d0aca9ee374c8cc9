package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

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
		answer, err := f.ListFires(t.Context(), &maintenancev1.ListFiresRequest{PageSize: size})
		if err != nil || len(answer.GetFires()) != 1000 || answer.GetNextPageToken() == "" {
			t.Errorf("%d: got %d fires, %v", size, len(answer.GetFires()), err)
		}
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
	list, err := f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{})
	if err != nil || len(list.GetFlags()) != 1 || list.GetFlags()[0].GetName() != name || !list.GetFlags()[0].GetEnabled() {
		t.Errorf("got %v, %v", list, err)
	}
	assert.Equal(t, f.run(&maintenancev1.RunBatchRequest{}).GetTurboMode(), true)
}
