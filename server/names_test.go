package server

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

func TestUnknownNames_AreInTheMetadata(t *testing.T) {
	f := start(t)
	const id = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4"
	long := strings.Repeat("x", 120)
	for want, err := range map[string]error{
		"UNKNOWN_WORKER worker=nobody":     second(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: "nobody"})),
		"UNKNOWN_WORKER worker=some one":   second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: "some one"})),
		"UNKNOWN_DATABASE database=abroad": second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, Database: "abroad"})),
		"UNKNOWN_RUN run_id=" + id:         second(f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: id})),
		"UNKNOWN_RUN run_id=x":             second(f.CancelRun(t.Context(), &maintenancev1.CancelRunRequest{Id: "x"})),
		"UNKNOWN_JOB job_id=77":            second(f.RetryJob(t.Context(), &maintenancev1.RetryJobRequest{Id: 77})),
		"UNKNOWN_JOB job_id=79":            second(f.CancelJob(t.Context(), &maintenancev1.CancelJobRequest{Id: 79, Reason: "r"})),
		"UNKNOWN_PATH ids=8,9":             second(f.AckOutside(t.Context(), &maintenancev1.AckOutsideRequest{Ids: []int64{9, 8, 9}})),
		"UNKNOWN_JOB job_id=78":            second(f.GetJob(t.Context(), &maintenancev1.GetJobRequest{Id: 78})),
		"UNKNOWN_FLAG flag=" + long:        second(f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{Name: long})),
		"UNKNOWN_PROTECTION target=user 9": second(f.UnprotectTarget(t.Context(), &maintenancev1.UnprotectTargetRequest{Kind: "user", Id: 9})),
	} {
		reason, rest, _ := strings.Cut(want, " ")
		key, name, _ := strings.Cut(rest, "=")
		info := detail[*errdetails.ErrorInfo](f.failure(err, codes.NotFound, reason))
		if got := info.GetMetadata(); len(got) != 1 || got[key] != name {
			t.Errorf("%s: got %v", want, got)
		}
	}
}

func TestSetFeatureFlag_RefusesOneThatNobodyKnows(t *testing.T) {
	f := start(t)
	set := func(name string) error {
		return second(f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{Name: name}))
	}
	s := f.failure(set("loose_foreign_keys_turbo_mode_mian"), codes.NotFound, "UNKNOWN_FLAG")
	if want := `unknown flag "loose_foreign_keys_turbo_mode_mian": known are loose_foreign_keys_turbo_mode_main`; s.Message() != want {
		t.Errorf("got %s, want %s", s.Message(), want)
	}
	f.exec(`INSERT INTO maintenance.feature_flags (name, enabled) VALUES ('of_a_newer_server', true)`)
	if err := set("of_a_newer_server"); err != nil {
		t.Error(err)
	}
}

func TestListFeatureFlags_ComeInPages(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.feature_flags (name, enabled) SELECT 'f_' || lpad(i::text, 3, '0'), i % 2 = 0 FROM generate_series(1, 120) i`)
	for size, wantPages := range map[int32]int{0: 3, 7: 18, 121: 1, 120: 2, 1 << 30: 1} {
		read := 0
		names := pages(f, func(token string) (*maintenancev1.ListFeatureFlagsResponse, []string, string, error) {
			read++
			answer, err := f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{PageSize: size, PageToken: token})
			var found []string
			for i, flag := range answer.GetFlags() {
				found = append(found, flag.GetName())
				if n := strings.TrimPrefix(flag.GetName(), "f_"); n != flag.GetName() && flag.GetEnabled() != strings.ContainsAny(n[2:], "02468") {
					t.Errorf("flag %d: %v", i, flag)
				}
			}
			return answer, found, answer.GetNextPageToken(), err
		})
		if len(names) != 121 || names[0] != "f_001" || names[119] != "f_120" || read != wantPages {
			t.Errorf("by %d: %d flags in %d pages", size, len(names), read)
		}
	}
	f.violates(second(f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{PageSize: -1})), "page_size")
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
