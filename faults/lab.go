package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service/lfk"
)

var (
	//go:embed estate_main.sql
	estateMainSQL string
	//go:embed rules.sql
	rulesSQL string
	//go:embed rules_main.sql
	rulesMainSQL string
)

// moreDefinitions are those of estate_main.sql.
const moreDefinitions = `
books:
  - table: shelves
    column: shelf_id
    on_delete: async_delete
desks:
  - table: depots
    column: depot_id
    on_delete: async_delete
`

// databases of the estate, in the order in which they are made.
func databases() []string { return []string{"main", "ci", "sec"} }

// lab is a PostgreSQL with the databases of one round, and its standby, which may take its place.
type lab struct {
	dir string
	// definitions is the path of the file of loose foreign keys.
	definitions string
	// disk is a file system of its own under the server's data, so that it can be full.
	disk bool
	// clock is the file that reports by how much the server's clock is wrong, "" if it cannot be.
	clock   string
	primary *devdb.Cluster
	standby *devdb.Cluster
	// failedOver: the primary is what was the standby, and cannot be started again.
	failedOver bool

	mu   sync.Mutex
	conn map[string]*pgx.Conn
}

// diskSize is enough for the databases of a round.
const diskSize = "1g"

// openLab starts the servers and fills the databases.
func openLab(ctx context.Context, dir string, estate *oracle.Estate) (_ *lab, err error) {
	l := &lab{dir: filepath.Join(dir, "server"), conn: map[string]*pgx.Conn{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(ctx))
		}
	}()
	l.definitions = filepath.Join(dir, "definitions.yml")
	if err := errors.Join(os.MkdirAll(l.dir, 0o755), os.WriteFile(l.definitions, []byte(devdb.Definitions()+moreDefinitions), 0o600)); err != nil {
		return nil, err
	}
	l.disk = exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", "mode=755,size="+diskSize, "caretaker-faults", l.dir).Run() == nil
	if library := fakeClock(); library != "" {
		l.clock = filepath.Join(dir, "clock")
		if err := os.WriteFile(l.clock, []byte("+0\n"), 0o644); err != nil { //nolint:gosec // the server has another user
			return nil, err
		}
	}
	if err := l.start(ctx); err != nil {
		return nil, err
	}
	for _, name := range databases() {
		if err := l.make(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := l.fill(ctx, estate); err != nil {
		return nil, err
	}
	if l.standby, err = l.primary.Standby(ctx, nil); err != nil {
		return nil, err
	}
	// Commits are on the standby too: a failover loses nothing.
	err = l.administer(ctx, `ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`)
	return l, err
}

// fakeClock is the library that lets the server's clock be wrong, "" if this machine has none.
func fakeClock() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// start starts the primary, again after it was killed.
func (l *lab) start(ctx context.Context) error {
	config := devdb.Config{Dir: filepath.Join(l.dir, "data"), Settings: map[string]string{
		// A kill of the server is not one of the machine: what was written is there.
		"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "200",
		"max_wal_size": "128MB", "min_wal_size": "32MB", "shared_buffers": "64MB",
	}}
	if l.clock != "" {
		config.Environment = []string{
			"LD_PRELOAD=" + fakeClock(), "FAKETIME_TIMESTAMP_FILE=" + l.clock,
			"FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1",
		}
	}
	return within(ctx, devdb.WaitTimeout, "PostgreSQL to start", func(ctx context.Context) (err error) {
		l.primary, err = devdb.Start(ctx, config)
		return err
	})
}

func (l *lab) make(ctx context.Context, name string) error {
	url := l.primary.URL(name)
	err := l.primary.CreateDatabase(ctx, name)
	if err == nil {
		err = devdb.LoadSchema(ctx, url, name)
	}
	if err != nil {
		return err
	}
	d, err := repo.Open(ctx, name, url)
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = scheduler.Migrate(ctx, d)
	return err
}

// fill writes the estate, and begins to take notes.
func (l *lab) fill(ctx context.Context, estate *oracle.Estate) error {
	all, err := l.connectAll(ctx)
	if err != nil {
		return err
	}
	if err := estate.Load(ctx, all); err != nil {
		return err
	}
	if err := l.queueJobs(ctx, all.Main, estate.Jobs()); err != nil {
		return err
	}
	for _, name := range databases() {
		if err := l.installRules(ctx, name); err != nil {
			return fmt.Errorf("take notes on %s: %w", name, err)
		}
	}
	_, err = all.Main.Exec(ctx, `INSERT INTO faults.bots SELECT unnest($1::bigint[])`, estate.InactiveBots())
	return err
}

// installRules creates the triggers.
func (l *lab) installRules(ctx context.Context, name string) error {
	conn, err := l.connect(ctx, name)
	if err != nil {
		return err
	}
	sql := rulesSQL + oracle.Witness
	if name == "main" {
		sql = estateMainSQL + sql + rulesMainSQL
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return err
	}
	return addChildren(ctx, conn, l.definitions)
}

func (l *lab) queueJobs(ctx context.Context, main *pgx.Conn, jobs []jobqueue.Job) error {
	d, err := repo.Open(ctx, "main", l.primary.URL("main"))
	if err != nil {
		return err
	}
	defer d.Close()
	queue, err := scheduler.NewQueue(d, scheduler.QueueConfig{})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, main, func(tx pgx.Tx) error {
		_, err := queue.InsertJobs(ctx, tx, jobs)
		return err
	})
}

// addChildren shows the notes which children must be gone before a record is done.
func addChildren(ctx context.Context, conn *pgx.Conn, file string) error {
	definitions, err := lfk.LoadDefinitions(file)
	if err != nil {
		return err
	}
	for _, k := range definitions.Keys {
		if k.OnDelete == lfkrepo.UpdateColumnTo || len(k.Conditions) > 0 || len(k.Columns) > 1 {
			continue
		}
		if _, err := conn.Exec(ctx, `INSERT INTO faults.children SELECT $1, $2, $3 WHERE to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL`,
			k.Parent, k.Table, k.Columns[0]); err != nil {
			return err
		}
	}
	return nil
}

// connect is a connection of our own to a database, past the network that breaks, for one at a time.
func (l *lab) connect(ctx context.Context, name string) (*pgx.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conn[name]; c != nil && c.Ping(ctx) == nil {
		return c, nil
	}
	c, err := connect(ctx, l.primary.URL(name))
	if err == nil {
		l.conn[name] = c
	}
	return c, err
}

// connectAll connects to all databases.
func (l *lab) connectAll(ctx context.Context) (all oracle.Databases, err error) {
	for name, c := range map[string]**pgx.Conn{"main": &all.Main, "ci": &all.CI, "sec": &all.Sec} {
		if *c, err = l.connect(ctx, name); err != nil {
			return all, err
		}
	}
	return all, nil
}

// open opens a connection under a name. connect is for ourselves.
func open(ctx context.Context, url, app string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, url+"&application_name="+app)
}

// connect opens a connection of the campaign. A server that has just started may refuse it for a while.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	for refused := 0; ; refused++ {
		conn, err := open(ctx, url, "faults")
		starting, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || starting.Code != "57P03" || refused == 300 {
			return conn, err
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// administer runs statements outside of transactions.
func (l *lab) administer(ctx context.Context, statements ...string) error {
	c, err := connect(ctx, l.primary.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// close stops what runs and removes it.
func (l *lab) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devdb.WaitTimeout)
	defer cancel()
	for _, c := range l.conn {
		_ = c.Close(ctx)
	}
	for _, c := range []*devdb.Cluster{l.primary, l.standby} {
		if c != nil {
			err = errors.Join(err, c.Stop(ctx))
		}
	}
	if l.disk {
		err = errors.Join(err, within(ctx, devdb.WaitTimeout, "the file system to be free", func(ctx context.Context) error {
			return exec.CommandContext(ctx, "umount", l.dir).Run()
		}))
	}
	return err
}

// within repeats what may fail for a while.
func within(ctx context.Context, limit time.Duration, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", limit, what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// missing are the faults that this machine does not let us cause.
func (l *lab) missing() (faults []string) {
	if !l.disk {
		faults = append(faults, "a full disk (to mount a file system needs root)")
	}
	if l.clock == "" {
		faults = append(faults, "a database clock that is set back (needs the package faketime)")
	}
	return faults
}
