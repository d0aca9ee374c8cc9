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

// A dry run of a worker with Candidates lists one by one what a run would process. The record has
// the first 1,000, the digest covers all. A request with that digest runs only if the candidates
// have not changed. Its run holds the lease and first finds them with the code of the dry run. It
// then works on nothing else.

// Actions of candidates.
const (
	ActionDelete   = "delete"
	ActionQueue    = "queue"
	ActionRestore  = "restore"
	ActionHold     = "hold"
	ActionPostpone = "postpone"
)

const (
	// maxCandidates is the maximum number on record.
	maxCandidates = 1000
	// maxCandidateText is the maximum length of a name or reason in bytes.
	maxCandidateText = 500
)

// candidates are the findings of a dry run so far.
type candidates struct {
	// digest is over all candidates. first lists some, and more counts the others.
	digest hash.Hash
	first  []control.Candidate
	more   int64
	// partial: some could not be checked.
	partial bool
	// actions has the actions of all candidates if they restrict a run, else nil.
	actions map[target]string
}

// target identifies the subject of a candidate.
type target struct {
	kind string
	id   int64
}

// maxSkippedLogged is the maximum number of skipped targets logged.
const maxSkippedLogged = 100

// MayTouch reports whether the run may do one of these actions with a target. A run with an
// expected digest does only what its candidates were planned for. It skips everything else, such as
// targets that have become due since. A target planned as postponed may be processed after all.
func (x *Execution) MayTouch(kind string, id int64, actions ...string) bool {
	if x.allowed == nil {
		return true
	}
	was, known := x.allowed[target{kind, id}]
	if known && (was == ActionPostpone || slices.Contains(actions, was)) {
		return true
	}
	if x.skipped.Add(1) <= maxSkippedLogged {
		x.Log.Info("candidate not in approved list, skipped", "kind", kind, "id", id)
	}
	return false
}

// HasAllowed reports whether the run is restricted to expected targets.
func (x *Execution) HasAllowed() bool { return x.allowed != nil }

// Candidate records what a run would process, in its order. Only dry runs record it.
func (x *Execution) Candidate(c control.Candidate) {
	if !x.DryRun {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// No field can contain its separator.
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

// cut shortens a text of a candidate: 1,000 of them must fit into an answer.
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

// CandidatesPartial marks that not all candidates could be checked. Then the digest is missing.
func (x *Execution) CandidatesPartial() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.found.partial = true
}

// keepCandidates stores the candidates in a run's record, with names. complete reports whether the
// work ended without an error. Names that cannot be read are left out: they decide nothing.
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

// orPlanChanged turns a run that found unexpected candidates into an error.
func orPlanChanged(run Run, err error) (Run, error) {
	if err != nil || run.State != control.RunSkipped || run.Reason != fault.ReasonPlanChanged {
		return run, err
	}
	return run, &fault.RefusedError{Reason: fault.ReasonPlanChanged, Text: run.Error, Metadata: map[string]string{
		"run_id": run.ID, "worker": run.Worker, "candidates_digest": run.CandidatesDigest,
	}}
}

// checkCandidates finds all candidates like a dry run. If their digest differs from the expected
// one, the run is skipped, and its record lists the current candidates.
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
	const changed = "the candidates do not match expected_digest: use the candidates_digest of a " +
		"new dry run (for the current candidates, see run %s)"
	const unknown = "the time limit of a run is too short to check all candidates: try again later, or omit " +
		"expected_digest (for the candidates checked so far, see run %s)"
	text := changed
	if found.CandidatesDigest == "" {
		text = unknown
	}
	return &fault.SkippedError{Reason: fault.ReasonPlanChanged, Text: fmt.Sprintf(text, x.Snapshot().ID)}
}

// dryRunWithin returns a dry run in place of a run, with its time, its trace and its time limit.
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

// runLog returns the logger of a run.
func runLog(logger *slog.Logger, run Run, database *repo.Database) *slog.Logger {
	return logger.With("worker", run.Worker, "run_id", run.ID, "database", database.Name,
		"dry_run", run.DryRun)
}

// digestForm matches a digest.
var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// validDigest returns an error for an expected digest that no run could have.
func validDigest(w *Worker, req Request) error {
	field := "expected_digest"
	switch {
	case req.ExpectedDigest == "":
		return nil
	case !w.Candidates:
		return &fault.InvalidArgumentError{Field: field, Description: "cannot be used with " + w.Name + ", which " +
			"has no candidates: omit the digest"}
	case req.DryRun:
		return &fault.InvalidArgumentError{Field: field, Description: "cannot be used with a dry run: compare the " +
			"digest with the candidates_digest of the dry run"}
	case !digestForm.MatchString(req.ExpectedDigest):
		return &fault.InvalidArgumentError{Field: field, Description: "must be a candidates_digest of 64 " +
			"characters (0-9, a-f)"}
	}
	return nil
}
