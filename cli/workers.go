package cli

import (
	"errors"
	"fmt"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
)

// workers turns the configuration of the workers into the service's: a field a worker.
func workers(c *config.Config) (out service.Config, err error) {
	if out.LooseForeignKeysCleanup, err = looseForeignKeysCleanup(c.LooseForeignKeysCleanup); err != nil {
		return out, err
	}
	ghosts := c.GhostUserMigration
	out.GhostUserMigration = service.GhostUserMigrationConfig{
		WorkerConfig: workerConfig(ghosts.Worker), Limit: ghosts.Limit, MaxRuntime: ghosts.MaxRuntime,
	}
	groups := c.AdjournedGroupDeletion
	out.AdjournedGroupDeletion = service.AdjournedGroupDeletionConfig{
		WorkerConfig: workerConfig(groups.Worker), BatchSize: groups.BatchSize, Interval: groups.Interval,
	}
	placeholders := c.PlaceholderUserCleanup
	out.PlaceholderUserCleanup = service.PlaceholderUserCleanupConfig{
		WorkerConfig: workerConfig(placeholders.Worker), MaxAttempts: placeholders.MaxAttempts,
		RetryPeriod: placeholders.RetryPeriod, Interval: placeholders.Interval, BatchSize: placeholders.BatchSize,
	}
	tokens := c.InactiveTokenDeletion
	out.InactiveTokenDeletion = service.InactiveTokenDeletionConfig{
		WorkerConfig: workerConfig(tokens.Worker), BatchSize: tokens.BatchSize,
		MaxRuntime: tokens.MaxRuntime, ContinueAfter: tokens.ContinueAfter, MaxQueued: tokens.MaxQueued,
	}
	load := c.Load
	out.Load = service.LoadConfig{
		MaxReplicaLag: load.MaxReplicaLag, IgnoredReplicas: load.IgnoredReplicas, MaxWALRate: load.MaxWALRate,
		MaxArchiveBacklog: load.MaxWALArchiveBacklog, MaxLockWait: load.MaxLockWait, MaxAutovacuum: load.MaxAutovacuum, Patience: load.Patience,
	}
	return out, nil
}

// checkSchedules refuses schedules that are none, before anything is opened.
func checkSchedules(c *config.Config) error {
	var mistakes []error
	for _, w := range []struct {
		name     string
		schedule string
	}{
		{"loose_foreign_keys_cleanup", c.LooseForeignKeysCleanup.Schedule},
		{"inactive_token_deletion", c.InactiveTokenDeletion.Schedule},
		{"ghost_user_migration", c.GhostUserMigration.Schedule},
		{"adjourned_group_deletion", c.AdjournedGroupDeletion.Schedule},
		{"placeholder_user_cleanup", c.PlaceholderUserCleanup.Schedule},
	} {
		if w.schedule == "" {
			continue
		}
		if _, err := service.ParseSchedule(w.schedule); err != nil {
			key := "workers." + w.name + ".schedule"
			mistakes = append(mistakes, fmt.Errorf("%s: %q %w", c.Where(key), w.schedule, err))
		}
	}
	return errors.Join(mistakes...)
}

func looseForeignKeysCleanup(c config.LooseForeignKeysCleanup) (out service.LooseForeignKeysCleanupConfig, err error) {
	out = service.LooseForeignKeysCleanupConfig{
		WorkerConfig: workerConfig(c.Worker), Rotation: c.Rotation, BatchSize: c.BatchSize,
		MaxDeletes: c.MaxDeletes, MaxUpdates: c.MaxUpdates, MaxRuntime: c.MaxRuntime,
	}
	if c.Definitions != "" {
		out.Definitions, err = service.LoadDefinitions(c.Definitions)
	}
	return out, err
}

func workerConfig(c config.Worker) service.WorkerConfig {
	return service.WorkerConfig{Schedule: c.Schedule, Disabled: !c.Enabled, CatchUp: c.CatchUp}
}
