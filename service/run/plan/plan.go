// Package plan says what deleting a user, group or placeholder user would do. A plan is made by the
// code of the jobs and workers that do it, in their order, each as a dry run: nothing is written or
// locked.
package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrUnknownTarget means that there is no such user, group or placeholder user.
var ErrUnknownTarget = errors.New("there is no such target")

// errPlanTime ends a plan whose time is over: what it has counted are lower bounds.
var errPlanTime = errors.New("the time of a plan is over")

const (
	// maxRows is up to how many rows of a table a plan counts.
	maxRows = 10_000
	// MaxTime is how long a plan may take: less than a client waits.
	MaxTime = 20 * time.Second
)

// Table is what would be done to the rows of a table.
type Table struct {
	// Table has its database before a colon where that is not main.
	Table string
	// Kept rows refer to what goes, and forbid it.
	Moved, Nullified, Deleted, Kept int64
	// AtLeast: not all of them were counted, or the database deletes more by itself.
	AtLeast bool
}

// Refusal is why something would not be deleted now: a typed reason, and words.
type Refusal struct{ Reason, Detail string }

// Plan is what a deletion would do, and the making of it. It is for one goroutine.
type Plan struct {
	Kind, Name string
	ID         int64
	// Digest is over the kind, the id and all that follows but the estimate.
	Digest string
	Exact  bool
	Tables []Table
	// Refused is nil if it would go.
	Refused *Refusal
	// Jobs are the kinds of job that would be queued, each once.
	Jobs []string
	// Outside is how many paths outside the database would be left.
	Outside int64
	// Remarks are what else there is to know.
	Remarks []string
	// Estimate is 0 if nothing comparable has been measured.
	Estimate time.Duration

	// Databases are those to be read, main first: replicas where there are some.
	Databases []*repo.Database
	tables    map[string]*Table
	seen      map[*repo.Database]map[rowset.Place]struct{}
	kept      map[*repo.Database]map[rowset.Place]struct{}
	// later is what is asked once all is counted.
	later []func(ctx context.Context) error
	limit int64
	ends  time.Time
}

// New has counted nothing yet.
func New(kind string, id int64, databases []*repo.Database) *Plan {
	return &Plan{
		Kind: kind, ID: id, Exact: true, Databases: databases, limit: maxRows,
		tables: map[string]*Table{}, ends: time.Now().Add(MaxTime),
		seen: map[*repo.Database]map[rowset.Place]struct{}{},
		kept: map[*repo.Database]map[rowset.Place]struct{}{},
	}
}

// Reset is the same plan with nothing counted, of other databases. Its time is what is left.
func (p *Plan) Reset(databases []*repo.Database) *Plan {
	again := New(p.Kind, p.ID, databases)
	again.ends = p.ends
	return again
}

// Main is the first database.
func (p *Plan) Main() *repo.Database { return p.Databases[0] }

// CheckStop is asked before every statement.
func (p *Plan) CheckStop() error {
	if time.Now().After(p.ends) {
		return errPlanTime
	}
	return nil
}

func (p *Plan) table(d *repo.Database, name string) *Table {
	if d.Name != p.Main().Name {
		name = d.Name + ":" + name
	}
	if p.tables[name] == nil {
		p.tables[name] = &Table{Table: name}
	}
	return p.tables[name]
}

// Count adds rows that a change would change.
func (p *Plan) Count(d *repo.Database, table string, c rowset.Change, rows int64) {
	t := p.table(d, table)
	switch c.Action() {
	case "move":
		t.Moved += rows
	case "nullify":
		t.Nullified += rows
	default:
		t.Deleted += rows
	}
	if c.Report != "" {
		p.Outside += rows
	}
}

// Remaining is how many rows of a table may still be counted.
func (p *Plan) Remaining(d *repo.Database, table string) int64 {
	t := p.table(d, table)
	return max(0, p.limit-t.Moved-t.Nullified-t.Deleted)
}

// AtLeast says that not all rows of a table have been counted.
func (p *Plan) AtLeast(d *repo.Database, table string) { p.table(d, table).AtLeast = true }

// Visited are the rows of a database that would be gone, or have been counted as kept.
func (p *Plan) Visited(d *repo.Database) (gone, kept map[rowset.Place]struct{}) {
	if p.seen[d] == nil {
		p.seen[d], p.kept[d] = map[rowset.Place]struct{}{}, map[rowset.Place]struct{}{}
	}
	return p.seen[d], p.kept[d]
}

// Keep counts rows that forbid the deletion.
func (p *Plan) Keep(d *repo.Database, table string, places []rowset.Place) {
	_, kept := p.Visited(d)
	for _, place := range places {
		if _, counted := kept[place]; !counted {
			kept[place] = struct{}{}
			p.table(d, table).Kept++
		}
	}
}

// Later has check asked once all is counted.
func (p *Plan) Later(check func(ctx context.Context) error) { p.later = append(p.later, check) }

// Check asks what was left for later. Its error is one of a [Planner].
func (p *Plan) Check(ctx context.Context) error {
	for _, check := range p.later {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Refuse says why it would not go; the first reason counts.
func (p *Plan) Refuse(reason, detail string) {
	if p.Refused == nil {
		p.Refused = &Refusal{reason, detail}
	}
}

// Remark adds what else there is to know.
func (p *Plan) Remark(text string) { p.Remarks = append(p.Remarks, text) }

// Queue says that a job of this kind would be queued.
func (p *Plan) Queue(kind string) {
	if !slices.Contains(p.Jobs, kind) {
		p.Jobs = append(p.Jobs, kind)
	}
}

// AddRefusal takes the error of a [Planner]: what would end the job or run ends the plan as a refusal. It
// returns what is about more than the target.
func (p *Plan) AddRefusal(ctx context.Context, err error) error {
	var missing *fault.NotConfiguredError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errPlanTime):
		for _, t := range p.tables {
			t.AtLeast = true
		}
		p.Exact = false
		return nil
	case ctx.Err() != nil, errors.Is(err, ErrUnknownTarget), errors.As(err, &missing),
		errors.Is(err, dberr.ErrUnreachable), fault.PublicError(err) == nil:
		return err
	}
	reason := fault.ReasonOf(err)
	if reason == "" {
		reason = "FAILED"
	}
	p.Refuse(reason, fault.PublicText(err))
	return nil
}

// Rows are all that would be changed, as far as they were counted.
func (p *Plan) Rows() (rows int64) {
	for _, t := range p.tables {
		rows += t.Moved + t.Nullified + t.Deleted
	}
	return rows
}

// Finish sorts what was counted, and makes the digest.
func (p *Plan) Finish() error {
	p.Tables = p.Tables[:0]
	for _, name := range slices.Sorted(maps.Keys(p.tables)) {
		t := *p.tables[name]
		if t == (Table{Table: name}) {
			continue
		}
		p.Tables = append(p.Tables, t)
		p.Exact = p.Exact && !t.AtLeast
	}
	slices.Sort(p.Jobs)
	text, err := json.Marshal([]any{p.Kind, p.ID, p.Exact, p.Tables, p.Refused, p.Jobs, p.Outside, p.Remarks})
	sum := sha256.Sum256(text)
	p.Digest = hex.EncodeToString(sum[:])
	return err
}
