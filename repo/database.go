package repo

import (
	"context"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/repo/lfk/orphans"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// Database is one configured PostgreSQL database. It connects when it is first needed. Each store has the steps of one
// subject.
type Database struct {
	*pg.Database
	Runs         control.Runs
	Leases       control.Leases
	Fires        control.Fires
	Audit        control.Audit
	Receipts     control.Receipts
	Flags        control.Flags
	History      control.History
	Jobs         jobqueue.Jobs
	Schema       catalog.Schema
	Sweeps       rowset.Sweeps
	Outside      rowset.Outside
	Queue        lfk.Queue
	Children     lfk.Children
	Capture      capture.Capture
	Orphans      orphans.Orphans
	Protections  protection.Protections
	Groups       gitlab.Groups
	Users        gitlab.Users
	Ghosts       gitlab.Ghosts
	Tokens       gitlab.Tokens
	Placeholders gitlab.Placeholders
}

// Open prepares the connections to a database; it does not connect. The error names what is wrong
// with the URL and never contains a password.
func Open(ctx context.Context, name, address string) (*Database, error) {
	d, err := pg.Open(ctx, name, address)
	if err != nil {
		return nil, err
	}
	d.Moved = lfk.QueueMoved
	return on(d), nil
}

func on(d *pg.Database) *Database {
	of := &Database{
		Database: d,
		Runs:     control.NewRuns(d), Leases: control.NewLeases(d), Fires: control.NewFires(d), Audit: control.NewAudit(d),
		Receipts: control.NewReceipts(d), Flags: control.NewFlags(d), History: control.NewHistory(d),
		Jobs: jobqueue.NewJobs(d), Schema: catalog.NewSchema(d), Sweeps: rowset.NewSweeps(d), Outside: rowset.NewOutside(d),
		Queue: lfk.NewQueue(d), Children: lfk.NewChildren(d), Capture: capture.NewCapture(d),
		Orphans: orphans.NewOrphans(d), Protections: protection.NewProtections(d),
	}
	of.Groups, of.Users, of.Ghosts, of.Tokens, of.Placeholders = gitlab.Stores(d)
	d.Owner = of
	return of
}

// MustDiffer makes connections of a database fail with [*dberr.SameDatabaseError], which is
// [dberr.ErrUnreachable], if it is the same as one before it in the list. It must be called before they
// are used; it does not connect.
func MustDiffer(databases []*Database) {
	pg.MustDiffer(Kernels(databases))
}

// Kernels are what steps of packages of repo take that are about several databases.
func Kernels(databases []*Database) []*pg.Database {
	all := make([]*pg.Database, len(databases))
	for i, d := range databases {
		all[i] = d.Database
	}
	return all
}

// Of is the database of a kernel that a catalogue, a child or rows name.
func Of(d *pg.Database) *Database {
	of, _ := d.Owner.(*Database)
	return of
}

// What other packages see of the kernel.
type (
	// Reader decides where candidates are found: see [Reader].
	Reader = pg.Reader
	// Protection keeps a user or group from being deleted: see [Protection].
	Protection = pg.Protection
	// ProtectedError means that nothing was deleted because of a protection: see [ProtectedError].
	ProtectedError = pg.ProtectedError
	// JobCascade is what jobs delete besides what PostgreSQL does: see [JobCascade].
	JobCascade = pg.JobCascade
	// PoolFigures are those of a pool of connections: see [PoolFigures].
	PoolFigures = pg.PoolFigures
)

// ClassInteger is the class of integer keys: see [ClassInteger].
const ClassInteger = pg.ClassInteger

// ReadBy lets a reader, or with nil none, decide where methods read that are called with the
// context returned.
func ReadBy(ctx context.Context, r *Reader) context.Context { return pg.ReadBy(ctx, r) }
