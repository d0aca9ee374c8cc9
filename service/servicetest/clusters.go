package servicetest

import (
	"context"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
)

// Databases is the cluster on which most tests have their databases.
var Databases devdb.Tests

// replicated is a cluster for tests with a standby, which streams what all of them write.
var replicated = devdb.Tests{Settings: map[string]string{"synchronous_commit": "on"}}

// Loaded is a cluster whose load tests cause: it has standbys.
var Loaded = devdb.Tests{Settings: map[string]string{
	"synchronous_commit": "on", "deadlock_timeout": "10s",
	// Keeps WAL for a standby that is still starting.
	"wal_keep_size": "1GB",
}}

// Small is the smallest part of the reference schema that has a queue of deleted records: all that
// loose_foreign_keys_cleanup requires. A copy costs a third of one of main.
const Small = "sec"

// Migrated is an empty database, or one with a part of the reference schema, with the schema maintenance. The schema
// maintenance of main goes into all, so that one database can play any part.
func Migrated(schema string) devdb.Template {
	return devdb.Template{Name: "migrated", Schema: schema, Prepare: func(ctx context.Context, url string) error {
		d, err := repo.Open(ctx, "main", url)
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = scheduler.Migrate(ctx, d)
		return err
	}}
}

// Demo is the reference schema in one database, with the demo data and the schema maintenance.
func Demo() devdb.Template {
	return devdb.Template{Name: "demo", Schema: "all", Dated: true, Prepare: func(ctx context.Context, url string) error {
		if err := devdb.LoadDemo(ctx, map[string]string{"main": url}); err != nil {
			return err
		}
		return Migrated("all").Prepare(ctx, url)
	}}
}
