package repo

import (
	"context"
	"fmt"

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

// Database is one configured PostgreSQL database. It connects on first use. Each embedded store has
// the steps of one subject.
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

// Open prepares the connections to a database without connecting. The error names the fault in the
// URL and never contains a password.
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
	d.Owner, d.Adopt = of, func(view *pg.Database) { on(view) }
	return of
}

// ReadCopy is [pg.Database.ReadCopy] with the stores of the database that it returns.
func (d *Database) ReadCopy(ctx context.Context) *Database { return Of(d.Database.ReadCopy(ctx)) }

// Target returns the place that the URL names, as HOST:PORT/DATABASE.
func (d *Database) Target() string {
	c := pg.PoolOf(d.Database).Config().ConnConfig
	return fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
}

// MustDiffer refuses connections of a database that is the same as a previous one in the list. The
// error is [*dberr.SameDatabaseError], which is [dberr.ErrUnreachable]. Call MustDiffer before the
// databases are used. It does not connect.
func MustDiffer(databases []*Database) {
	pg.MustDiffer(Kernels(databases))
}

// Kernels returns the kernels of databases, for steps of several databases.
func Kernels(databases []*Database) []*pg.Database {
	all := make([]*pg.Database, len(databases))
	for i, d := range databases {
		all[i] = d.Database
	}
	return all
}

// Of returns the database of a kernel, such as the kernel of a catalogue, a child or rows.
func Of(d *pg.Database) *Database {
	of, _ := d.Owner.(*Database)
	return of
}

// Types of the kernel that other packages use.
type (
	// Reader decides where candidates are read: see [pg.Reader].
	Reader = pg.Reader
	// Protection keeps a user or group from being deleted: see [pg.Protection].
	Protection = pg.Protection
	// ProtectedError means that a protection prevented a deletion: see [pg.ProtectedError].
	ProtectedError = pg.ProtectedError
	// JobCascade is a deletion by jobs in addition to PostgreSQL's cascades: see [pg.JobCascade].
	JobCascade = pg.JobCascade
)

// ClassInteger is the class of integer keys: see [pg.ClassInteger].
const ClassInteger = pg.ClassInteger

// ReadBy returns a context in which the reader decides where methods read. A nil reader decides
// nothing.
func ReadBy(ctx context.Context, r *Reader) context.Context { return pg.ReadBy(ctx, r) }
