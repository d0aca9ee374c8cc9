package service_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// looseForeignKeysOnly takes from main what they do without, and says so in the configuration.
func looseForeignKeysOnly(e *servicetest.Estate) func(*service.Config) {
	e.T.Helper()
	e.Exec("main", `DROP TABLE maintenance.group_removals, maintenance.job_cancellations,
		maintenance.outside_paths, maintenance.protected_targets, maintenance.token_passes,
		maintenance.user_removals, maintenance.river_job, maintenance.river_queue,
		maintenance.river_leader, maintenance.river_migration CASCADE`)
	return func(c *service.Config) { c.Use = service.UseLooseForeignKeys }
}

func TestUse_LooseForeignKeysAloneWorkWithoutTheOtherTables(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "ci", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id);
		INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	ctx := context.Background()
	s := e.Service(servicetest.OneChild, looseForeignKeysOnly(e), e.WithQueue)
	run, err := s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
	if err != nil || run.Counts["deleted_rows"] != 1 {
		t.Fatalf("%v, %v", run, err)
	}
	all := servicetest.Must(s.Status(ctx, ""))(t)
	for _, st := range all {
		if st.Condition == service.ConditionFailing || strings.Contains(st.ConditionDetail, "river") {
			t.Errorf("%s: %s %s", st.Worker, st.Condition, st.ConditionDetail)
		}
	}
	if all[0].Worker != servicetest.LooseForeignKeys || slices.ContainsFunc(all, func(st service.WorkerStatus) bool {
		return st.Worker == "ghost_user_migration"
	}) {
		t.Errorf("workers: %v", all)
	}
	if _, err := e.Open[0].PruneHistory(ctx, time.Hour); err != nil {
		t.Error(err)
	}
	if kinds := s.JobKinds(); len(kinds) > 0 {
		t.Errorf("kinds of jobs: %v", kinds)
	}
	for _, name := range m.Names() {
		if strings.Contains(name, "job") || strings.Contains(name, "queue") {
			t.Errorf("metric %s", name)
		}
	}
	if values := m.Values("maintenance.runs", "worker=ghost_user_migration"); len(values) > 0 {
		t.Errorf("a series of another worker: %v", values)
	}
}

func TestUse_WhatIsLeftOutIsRefusedWithTheKey(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "ci", "main")
	s := e.Service("", looseForeignKeysOnly(e))
	ctx := context.Background()
	_, err := s.RunBatch(ctx, service.RunRequest{Worker: "ghost_user_migration"})
	if !errors.Is(err, service.ErrUnknownWorker) || !strings.Contains(err.Error(), "use: gitlab") {
		t.Errorf("got %v", err)
	}
	if _, err := s.RunBatch(ctx, service.RunRequest{Worker: "other"}); strings.Contains(err.Error(), "use:") {
		t.Errorf("got %v", err)
	}
	second := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"Jobs":         second(s.Jobs(ctx, service.JobFilter{Limit: 1})),
		"Job":          second(s.Job(ctx, 1)),
		"JobWorker":    second(s.JobWorker(ctx, 1)),
		"JobCounts":    second(s.JobCounts(ctx)),
		"CancelJob":    second(s.CancelJob(ctx, 1, "why", "me")),
		"RetryJob":     second(s.RetryJob(ctx, 1)),
		"PlanDeletion": second(s.PlanDeletion(ctx, "user", 1)),
		"Protect":      second(s.Protect(ctx, service.Protection{Kind: "user", ID: 1, Reason: "why"}, 0)),
		"Unprotect":    second(s.Unprotect(ctx, "user", 1, "me")),
		"Protections":  second(s.Protections(ctx, "", service.Protection{}, 1)),
		"Outside":      second(s.Outside(ctx, repo.OutsideFilter{Limit: 1})),
		"AckOutside":   second(s.AckOutside(ctx, []int64{1}, "me")),
	} {
		if _, ok := errors.AsType[*service.NotInUseError](err); !ok ||
			!strings.Contains(err.Error(), "use: loose_foreign_keys") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if jobs, err := s.JobsOfRun(ctx, "00000000-0000-7000-8000-000000000001", 1); err != nil || len(jobs) > 0 {
		t.Errorf("jobs of a run: %v, %v", jobs, err)
	}
}

func TestUse_SettingsOfWorkersThatAreLeftOutAreMistakes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "caretaker.yml")
	text := "use: loose_foreign_keys\nworkers:\n  ghost_user_migration: {limit: 7}\n" +
		"  loose_foreign_keys_cleanup: {batch_size: 7}\n"
	servicetest.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c := &service.Config{}
	_, err := config.LoadPartial(file, c)
	want := "caretaker.yml:3: workers.ghost_user_migration.limit: there is no worker ghost_user_migration with use: loose_foreign_keys"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "batch_size") {
		t.Errorf("got %v", err)
	}
	if names := c.Workers(); names[0] != servicetest.LooseForeignKeys || slices.Contains(names, "ghost_user_migration") {
		t.Errorf("workers %v", names)
	}
}
