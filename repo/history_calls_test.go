package repo_test

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// callsOfWorkers are those of calls that control workers and runs.
func (a *aged) callsOfWorkers() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"PauseWorker": func(ctx context.Context) error {
			return second(a.PauseWorker(ctx, "ghost_user_migration", "a test", "test", time.Hour))
		},
		"ResumeWorker": func(ctx context.Context) error {
			return second(a.ResumeWorker(ctx, "ghost_user_migration", "test"))
		},
		"SetFeatureFlag": func(ctx context.Context) error {
			return a.SetFeatureFlag(ctx, "loose_foreign_keys_turbo_mode_main", true)
		},
		"FeatureFlags": func(ctx context.Context) error { return second(a.FeatureFlags(ctx)) },
		"RunBatch":     a.runAll,
		"WatchRun": func(ctx context.Context) error {
			return a.WatchRun(ctx, a.run, func(run.Run) error { return nil })
		},
		"RunID":             func(ctx context.Context) error { return second(a.RunID(ctx, "id", a.run[:35])) },
		"CancelRun":         func(ctx context.Context) error { return second(a.CancelRun(ctx, a.run, "test")) },
		"RunDue":            a.RunDue,
		"ResumeRuns":        a.ResumeRuns,
		"Healthy":           a.Healthy,
		"ReloadDefinitions": func(context.Context) error { return second(a.ReloadDefinitions()) },
		"Needs":             func(ctx context.Context) error { return second(a.Needs(ctx, a.main)) },
		"Shutdown":          func(context.Context) error { return nil },
	}
}
