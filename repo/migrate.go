package repo

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

//go:embed migrations
var migrationFiles embed.FS

// migrationLock is the key of the advisory lock under which migrations run: "caretake" in ASCII.
const migrationLock = 0x6361726574616b65

// Migrate brings the schema maintenance of the database up to date and returns the names of the
// applied migrations. Migrations only go forward, each in its own transaction. One process migrates
// at a time, while replicas keep working.
func (d *Database) Migrate(ctx context.Context) (applied []string, err error) {
	err = d.WhileMigrating(ctx, func() error {
		for _, set := range d.migrationSets() {
			names, err := d.migrateSet(ctx, set)
			applied = append(applied, names...)
			if err != nil {
				return fmt.Errorf("cannot migrate %s: %w", d.Name, err)
			}
		}
		return nil
	})
	return applied, err
}

// migrationLockSQL waits for the lock, which is released at the end of the transaction.
const migrationLockSQL = `SELECT pg_advisory_xact_lock($1)`

// WhileMigrating calls do, which changes the existing schema maintenance, in one process at a time.
// A transaction holds the lock, so a pooler in transaction mode does no harm.
func (d *Database) WhileMigrating(ctx context.Context, do func() error) error {
	lock, err := pg.PoolOf(d.Database).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return pg.Wrap(ctx, d.Database, "migrate", err)
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(ctx)) }()
	locking := stmt.Statement{SQL: migrationLockSQL, Args: []any{int64(migrationLock)}}
	if err := pg.ExecAll(ctx, lock, stmt.Statement{SQL: pg.NoTimeoutSQL, Args: nil}, locking); err != nil {
		return pg.Wrap(ctx, d.Database, "lock the migrations", err)
	}
	if _, err := pg.PoolOf(d.Database).Exec(ctx, `CREATE SCHEMA IF NOT EXISTS maintenance`); err != nil {
		return pg.Wrap(ctx, d.Database, "create the maintenance schema", err)
	}
	return do()
}

// CheckMigrated returns [dberr.ErrNotMigrated] if the schema maintenance is missing or older than this
// program.
func (d *Database) CheckMigrated(ctx context.Context) error {
	if err := d.Ping(ctx); err != nil {
		return err
	}
	for _, set := range d.migrationSets() {
		var current int64
		wanted, err := set.versions()
		if err != nil {
			return err
		}
		var applied int
		into := []any{&current, &applied}
		err = pg.QueryRow(ctx, d.Database, "read the schema version", into, set.versionSQL(), wanted)
		if withoutTable(err) {
			return fmt.Errorf("database %s is %w", d.Name, dberr.ErrNotMigrated)
		}
		if err != nil {
			return err
		}
		switch newest := slices.Max(wanted); {
		case current < newest:
			return fmt.Errorf("database %s is %w: its schema version is %d, but version %d is "+
				"required", d.Name, dberr.ErrNotMigrated, current, newest)
		case applied < len(wanted):
			return fmt.Errorf("database %s is %w for this configuration",
				d.Name, dberr.ErrNotMigrated)
		}
	}
	return nil
}

// withoutTable reports whether a statement failed because a table or column does not exist.
func withoutTable(err error) bool {
	var pgErr *dberr.Error
	return errors.As(err, &pgErr) && pgErr.SQLState != "42501" && pgErr.Class() == dberr.ClassSchema
}

// queueMigratedSQL reports whether River has recorded all versions of $1 as applied.
const queueMigratedSQL = `
SELECT count(*) = cardinality($1::bigint[]) FROM maintenance.river_migration
WHERE line = 'main' AND version = ANY ($1::bigint[])`

// QueueMigrated reports whether main has these versions of River's tables. River's own check reads
// information_schema, whose views take longer to plan than all other statements of a start
// together.
func (d *Database) QueueMigrated(ctx context.Context, versions []int64) (done bool, err error) {
	err = pg.QueryRow(ctx, d.Database, "check the job queue", []any{&done}, queueMigratedSQL, versions)
	if withoutTable(err) {
		return false, nil
	}
	return done, err
}

// NewerSchema reports whether a newer version of caretaker has migrated the schema maintenance. It
// returns the current version, and the newest that this program knows.
func (d *Database) NewerSchema(ctx context.Context) (newer bool, current, known int64, err error) {
	for _, set := range d.migrationSets() {
		var applied int
		into := []any{&current, &applied}
		err := pg.QueryRow(ctx, d.Database, "read the schema version", into, set.versionSQL(), []int64{})
		if err == nil {
			known, err = set.newest()
		}
		if err != nil || current > known {
			return err == nil, current, known, err
		}
	}
	return false, current, known, nil
}

// migrationSet is a folder of migrations with its version table.
type migrationSet struct {
	folder, table string
	// without are the excluded migrations.
	without []int64
}

// migrationSets returns the set of every database and, for main, a second set.
func (d *Database) migrationSets() []migrationSet {
	sets := []migrationSet{{folder: "every", table: "maintenance.schema_migrations"}}
	if d.Name == "main" {
		main := migrationSet{folder: "main", table: "maintenance.schema_migrations_main"}
		if d.LooseForeignKeysOnly {
			main.without = gitlabMigrations()
		}
		sets = append(sets, main)
	}
	return sets
}

// gitlabMigrations returns the migrations of main that serve only the workers for GitLab's users,
// groups and tokens. A migration is for them or for all workers, never for both.
func gitlabMigrations() []int64 {
	return []int64{2, 3, 7, 10, 14}
}

// versionSQL reads the newest applied version, and how many versions of $1 are applied.
func (s migrationSet) versionSQL() string {
	return `SELECT coalesce(max(version_id), 0), count(DISTINCT version_id) FILTER (WHERE version_id = ANY ($1::bigint[]))
FROM ` + s.table + ` WHERE is_applied`
}

// versions returns the migrations of this program that are not excluded, in ascending order.
func (s migrationSet) versions() (all []int64, err error) {
	files, err := fs.Glob(migrationFiles, "migrations/"+s.folder+"/*.sql")
	if err != nil {
		return nil, fmt.Errorf("cannot list the migrations in %s: %w", s.folder, err)
	}
	for _, file := range files {
		version, err := goose.NumericComponent(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the version of migration %s: %w", file, err)
		}
		if !slices.Contains(s.without, version) {
			all = append(all, version)
		}
	}
	return all, nil
}

// newest returns the newest migration of the folder, excluded or not.
func (s migrationSet) newest() (int64, error) {
	all, err := migrationSet{folder: s.folder}.versions()
	if err != nil {
		return 0, err
	}
	return slices.Max(all), nil
}

// migrateSet applies the missing migrations of a set. It returns their names, including those
// applied before an error.
func (d *Database) migrateSet(ctx context.Context, set migrationSet) ([]string, error) {
	files, err := fs.Sub(migrationFiles, "migrations/"+set.folder)
	if err != nil {
		return nil, err
	}
	store, err := database.NewStore(goose.DialectPostgres, set.table)
	if err != nil {
		return nil, err
	}
	// No prepared statements: a pooler in transaction mode need not have them on its next connection.
	config := pg.PoolOf(d.Database).Config().ConnConfig
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*config)
	defer func() { _ = db.Close() }()
	// Migrations of a set that is enabled later may be older than migrations already applied.
	provider, err := goose.NewProvider("", db, files, goose.WithStore(store),
		goose.WithDisableGlobalRegistry(true), goose.WithExcludeVersions(set.without),
		goose.WithAllowOutofOrder(true))
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	var names []string
	for _, r := range results {
		names = append(names, set.folder+"/"+r.Source.Path)
	}
	return names, pg.Wrap(ctx, d.Database, "apply migrations", err)
}

// NewestMigrations returns the newest migrations of this program: of every database, and of the
// second set of main.
func NewestMigrations() (every, main int64, err error) {
	sets := on(&pg.Database{Name: "main"}).migrationSets()
	if every, err = sets[0].newest(); err == nil {
		main, err = sets[1].newest()
	}
	return every, main, err
}
