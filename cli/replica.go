package cli

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
)

// useReplicas gives the databases their read replicas. A mistake in a replica's URL costs the replica, not the server.
func (i *instance) useReplicas(ctx context.Context, c *config.Config) {
	for _, d := range i.databases {
		at := slices.IndexFunc(c.Databases, func(configured config.Database) bool { return configured.Name == d.Name })
		if at < 0 || c.Databases[at].ReplicaURL == "" {
			continue
		}
		if err := d.UseReplica(ctx, c.Databases[at].ReplicaURL, i.logger); err != nil {
			i.logger.WarnContext(ctx, "replica not used, the primary is read", "database", d.Name, "error", err.Error())
		}
	}
}

// checkPooler warns of a pooler for which the URL lacks a setting.
func (i *instance) checkPooler(ctx context.Context, d *repo.Database) {
	if err := d.CheckPooler(ctx); err != nil {
		i.logger.WarnContext(ctx, "a pooler seems to be in between", "database", d.Name, "error", err.Error())
	}
}

// checkReplica warns of a replica that cannot be read at the start; later it may be.
func (i *instance) checkReplica(ctx context.Context, d *repo.Database) {
	if err := d.CheckReplica(ctx); err != nil {
		i.logger.WarnContext(ctx, "replica cannot be read, the primary is until it can", "database", d.Name, "error", err.Error())
	}
}
