package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"log/slog"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// A dry run of a worker with Candidates says one by one what a run would work on. The first 1,000
// are on record, all are in the digest. A request with that digest is done only if they are still
// the same: its run first looks at them as a dry run does, by the same code and with the lease held.
// It then works on nothing else.

// Actions of candidates.
const (
	ActionDelete   = "delete"
	ActionQueue    = "queue"
	ActionRestore  = "restore"
	ActionHold     = "hold"
	ActionPostpone = "postpone"
)

const (
	// maxCandidates is how many are on record.
	maxCandidates = 1000
	// maxCandidateText is how many bytes of a name or reason are.
	maxCandidateText = 500
)

// candidates are what a dry run has found so far.
type candidates struct {
	digest hash.Hash
	first  []control.Candidate
	more   int64
	// partial: some could not be looked at.
	partial bool
	// actions are those of all of them, where a run is to be held to them; else nil.
	actions map[target]string
}

// target is what a candidate is about.
type target struct {
	kind string
	id   int64
}

// maxSkippedLogged is how many of what a run passes over are logged.
const maxSkippedLogged = 100

// MayTouch reports whether the run may do one of these actions with a target. A run with an
// expected digest does what its candidates were planned for, and nothing with anything else, such
// as what has become due since they were looked at. What was to be postponed it may do after all.
func (x *Execution) MayTouch(kind string, id int64, actions ...string) bool {
	if x.allowed == nil {
		return true
	}
	was, known := x.allowed[target{kind, id}]
	if known && (was == ActionPostpone || slices.Contains(actions, was)) {
		return true
	}
	if x.skipped.Add(1) <= maxSkippedLogged {
		x.Log.Info("passed over, not in the plan", "kind", kind, "id", id)
	}
	return false
}

// HasAllowed reports whether the run may work on expected targets alone.
func (x *Execution) HasAllowed() bool { return x.allowed != nil }

// Candidate notes what a run would work on, in its order. Only dry runs note it.
func (x *Execution) Candidate(c control.Candidate) {
	if !x.DryRun {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// No field can hold what ends it.
	_, _ = fmt.Fprintf(x.found.digest, "%s %d %s %q\n", c.Kind, c.ID, c.Action, c.Reason)
	if x.found.actions != nil {
		x.found.actions[target{c.Kind, c.ID}] = c.Action
	}
	if len(x.found.first) == maxCandidates {
		x.found.more++
		return
	}
	c.Reason = cut(c.Reason)
	x.found.first = append(x.found.first, c)
}

// cut shortens a text of a candidate: a thousand of them must fit into an answer.
func cut(text string) string {
	if len(text) <= maxCandidateText {
		return text
	}
	most := maxCandidateText
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// CandidatesPartial says that not all candidates could be looked at: then there is no digest.
func (x *Execution) CandidatesPartial() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.found.partial = true
}

// keepCandidates puts what was found into a run's record, with names. complete: the work has ended
// without an error. Names that cannot be read are left out: they decide nothing.
func (x *Execution) keepCandidates(ctx context.Context, into *Run, complete bool) {
	if !x.DryRun || !x.Worker.Candidates {
		return
	}
	x.mu.Lock()
	found := x.found
	x.mu.Unlock()
	ids := map[string][]int64{}
	for _, c := range found.first {
		ids[c.Kind] = append(ids[c.Kind], c.ID)
	}
	names := map[string]map[int64]string{}
	for kind := range ids {
		var err error
		if names[kind], err = x.Database.Users.Names(ctx, kind, ids[kind], ReadLimits()); err != nil {
			x.Log.DebugContext(ctx, "names of candidates not read", "error", err)
		}
	}
	for i := range found.first {
		c := &found.first[i]
		c.Name = cut(names[c.Kind][c.ID])
	}
	into.Candidates, into.MoreCandidates = found.first, found.more
	if complete && !found.partial {
		into.CandidatesDigest = hex.EncodeToString(found.digest.Sum(nil))
	}
}

// orPlanChanged turns a run that found other candidates than expected into an error.
func orPlanChanged(run Run, err error) (Run, error) {
	if err != nil || run.State != control.RunSkipped || run.Reason != fault.ReasonPlanChanged {
		return run, err
	}
	return run, &fault.RefusedError{Reason: fault.ReasonPlanChanged, Text: run.Error, Metadata: map[string]string{
		"run_id": run.ID, "worker": run.Worker, "candidates_digest": run.CandidatesDigest,
	}}
}

// checkCandidates looks at all candidates as a dry run does. The run ends here unless they are those
// expected; its record has those of now.
func (r *Runner) checkCandidates(ctx context.Context, x *Execution) error {
	if x.expected == "" {
		return nil
	}
	plan := r.dryRunWithin(x)
	err := fault.RecoverPanic(func() error { return x.Worker.Work(ctx, plan) })
	if err != nil {
		return err
	}
	var found Run
	plan.keepCandidates(ctx, &found, true)
	if found.CandidatesDigest == x.expected {
		x.allowed = plan.found.actions
		return nil
	}
	x.Report(func(run *Run) {
		run.Candidates, run.MoreCandidates = found.Candidates, found.MoreCandidates
		run.CandidatesDigest = found.CandidatesDigest
	})
	const changed = "the candidates are not those of expected_digest, nothing was done: " +
		"look at a new dry run, and ask again with its candidates_digest; GetRun with the id %s has those of now"
	const unknown = "the candidates could not all be looked at in the time of a run, nothing was done: " +
		"run %s has those that were; ask again later, or without expected_digest"
	text := changed
	if found.CandidatesDigest == "" {
		text = unknown
	}
	return &fault.SkippedError{Reason: fault.ReasonPlanChanged, Text: fmt.Sprintf(text, x.Snapshot().ID)}
}

// dryRunWithin is a dry run in the place of a run, at its time and in its trace, with its limit of time.
func (r *Runner) dryRunWithin(x *Execution) *Execution {
	run := x.Snapshot()
	run.DryRun, run.Counts, run.Tables = true, map[string]int64{}, nil
	return &Execution{
		Database: x.Database, Flags: x.Flags, MaxRuntime: x.MaxRuntime, DryRun: true,
		Log: runLog(r.Logger, run, x.Database), Worker: x.Worker, metrics: x.metrics, Tracer: x.Tracer, Span: x.Span,
		reader: x.reader, loads: x.loads, started: x.started, stopRequested: x.stopRequested,
		requestStop: x.requestStop, run: run,
		found: candidates{digest: sha256.New(), actions: map[target]string{}},
	}
}

// runLog is the log of a run.
func runLog(logger *slog.Logger, run Run, database *repo.Database) *slog.Logger {
	return logger.With("worker", run.Worker, "run_id", run.ID, "database", database.Name,
		"dry_run", run.DryRun)
}

// digestForm is the form of a digest.
var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// validDigest refuses an expected digest that no run could have.
func validDigest(w *Worker, req Request) error {
	field := "expected_digest"
	switch {
	case req.ExpectedDigest == "":
		return nil
	case !w.Candidates:
		return &fault.InvalidArgumentError{Field: field, Description: w.Name + " has no candidates: leave it empty"}
	case req.DryRun:
		return &fault.InvalidArgumentError{Field: field, Description: "not for a dry run: compare it with its candidates_digest"}
	case !digestForm.MatchString(req.ExpectedDigest):
		return &fault.InvalidArgumentError{Field: field, Description: "is no candidates_digest: 64 characters 0-9, a-f"}
	}
	return nil
}
