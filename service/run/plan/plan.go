// Package plan computes what deleting a user, group or placeholder user would do. The code of the
// jobs and workers that do it makes a plan, in their order, each as a dry run. A plan writes and
// locks nothing.
package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrUnknownTarget means that the user, group or placeholder user was not found.
var ErrUnknownTarget = errors.New("unknown target")

// UnknownTarget returns the error for a target that was not found.
func UnknownTarget(kind string, id int64) error {
	table := "the table users"
	if kind == control.KindGroup {
		table = "the table namespaces (type Group)"
	}
	return &fault.RefusedError{
		Reason: "UNKNOWN_TARGET", What: ErrUnknownTarget,
		Text:     fmt.Sprintf("%s %d not found: check the id in %s", kind, id, table),
		Metadata: map[string]string{"kind": kind, "id": strconv.FormatInt(id, 10)},
	}
}

// errPlanTime ends a plan at its timeout: its counts are lower bounds.
var errPlanTime = errors.New("plan timed out")

const (
	// maxRows is the maximum number of rows that a plan counts in a table.
	maxRows = 10_000
	// MaxTime is the time limit of a plan, shorter than the timeout of caretaker's command line.
	MaxTime = 20 * time.Second
)

// Table has the changes to the rows of one table.
type Table struct {
	// Table starts with its database and a colon unless that is main.
	Table string
	// Kept rows refer to a target, and prevent its deletion.
	Moved, Nullified, Deleted, Kept int64
	// AtLeast: not all of them were counted, or the database itself deletes more.
	AtLeast bool
}

// Refusal is why a target would not be deleted now: a typed reason and a text.
type Refusal struct{ Reason, Detail string }

// Plan is the effect of a deletion, while and after it is computed. It is for one goroutine.
type Plan struct {
	Kind, Name string
	ID         int64
	// Digest covers the kind, the id and all fields below except the estimate.
	Digest string
	// Exact reports whether all rows were counted. Otherwise some counts are lower limits.
	Exact  bool
	Tables []Table
	// Refused is nil if the target would be deleted.
	Refused *Refusal
	// Jobs are the kinds of job that would be queued, each once.
	Jobs []string
	// Outside is the number of paths outside the database that would remain.
	Outside int64
	// Remarks are further facts for the reader.
	Remarks []string
	// Estimate is 0 if no comparable deletion has been measured.
	Estimate time.Duration

	// Databases are those to read, main first: replicas where they exist.
	Databases []*repo.Database
	tables    map[string]*Table
	seen      map[*repo.Database]map[rowset.Place]struct{}
	kept      map[*repo.Database]map[rowset.Place]struct{}
	// later are the checks to run after counting.
	later []func(ctx context.Context) error
	limit int64
	ends  time.Time
}

// New returns a plan without counts.
func New(kind string, id int64, databases []*repo.Database) *Plan {
	return &Plan{
		Kind: kind, ID: id, Exact: true, Databases: databases, limit: maxRows,
		tables: map[string]*Table{}, ends: time.Now().Add(MaxTime),
		seen: map[*repo.Database]map[rowset.Place]struct{}{},
		kept: map[*repo.Database]map[rowset.Place]struct{}{},
	}
}

// Reset returns the same plan without counts, for other databases. It has only the remaining time.
func (p *Plan) Reset(databases []*repo.Database) *Plan {
	again := New(p.Kind, p.ID, databases)
	again.ends = p.ends
	return again
}

// Main returns the first database.
func (p *Plan) Main() *repo.Database { return p.Databases[0] }

// CheckStop is called before every statement.
func (p *Plan) CheckStop() error {
	if time.Now().After(p.ends) {
		return errPlanTime
	}
	return nil
}

// table returns the counts of a table, which it creates at the first call. Names outside main
// start with their database: "ci:builds".
func (p *Plan) table(d *repo.Database, name string) *Table {
	if d.Name != p.Main().Name {
		name = d.Name + ":" + name
	}
	if p.tables[name] == nil {
		p.tables[name] = &Table{Table: name}
	}
	return p.tables[name]
}

// Count adds the rows of a change.
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

// Remaining returns how many rows of a table may still be counted.
func (p *Plan) Remaining(d *repo.Database, table string) int64 {
	t := p.table(d, table)
	return max(0, p.limit-t.Moved-t.Nullified-t.Deleted)
}

// AtLeast marks a table whose rows were not all counted.
func (p *Plan) AtLeast(d *repo.Database, table string) { p.table(d, table).AtLeast = true }

// Visited returns the rows of a database that would be deleted, and those counted as kept.
func (p *Plan) Visited(d *repo.Database) (deleted, kept map[rowset.Place]struct{}) {
	if p.seen[d] == nil {
		p.seen[d], p.kept[d] = map[rowset.Place]struct{}{}, map[rowset.Place]struct{}{}
	}
	return p.seen[d], p.kept[d]
}

// Keep counts rows that prevent the deletion.
func (p *Plan) Keep(d *repo.Database, table string, places []rowset.Place) {
	_, kept := p.Visited(d)
	for _, place := range places {
		if _, counted := kept[place]; !counted {
			kept[place] = struct{}{}
			p.table(d, table).Kept++
		}
	}
}

// Later adds a check that runs after counting.
func (p *Plan) Later(check func(ctx context.Context) error) { p.later = append(p.later, check) }

// Check runs the checks added by Later. Its error is one of a [Planner].
func (p *Plan) Check(ctx context.Context) error {
	for _, check := range p.later {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Refuse sets why the target would not be deleted. The first reason counts.
func (p *Plan) Refuse(reason, detail string) {
	if p.Refused == nil {
		p.Refused = &Refusal{reason, detail}
	}
}

// Remark adds a further fact.
func (p *Plan) Remark(text string) { p.Remarks = append(p.Remarks, text) }

// Queue adds the kind of a job that would be queued.
func (p *Plan) Queue(kind string) {
	if !slices.Contains(p.Jobs, kind) {
		p.Jobs = append(p.Jobs, kind)
	}
}

// AddRefusal handles the error of a [Planner]: an error that would end the job or run becomes a
// refusal. It returns errors about more than the target.
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

// Rows returns the number of rows that would be changed, as far as counted.
func (p *Plan) Rows() (rows int64) {
	for _, t := range p.tables {
		rows += t.Moved + t.Nullified + t.Deleted
	}
	return rows
}

// Finish sorts the counts and computes the digest.
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
