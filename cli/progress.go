package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// progressEvery is the interval of progress lines if the output is not a terminal.
const progressEvery = 5 * time.Second

// progress shows a running run on the standard error. On a terminal it updates one line. Elsewhere
// it prints a line at the start, every five seconds, and when the reason changes.
func progress(ctx context.Context, client api, out *terminal) func(*pb.RunEvent) error {
	terminal, reason, written := isTerminal(out.std.Err), "", time.Time{}
	var total *int64
	return func(event *pb.RunEvent) error {
		run := event.GetRun()
		working := run.GetState() == pb.RunState_RUN_STATE_RUNNING
		if working && total == nil {
			due := dueFor(ctx, client, run)
			total = &due
		}
		switch {
		case terminal && working:
			out.status("%s %s", bar(event.GetSequence(), progressOf(run, *total).Percent()), progressText(run, *total))
		case terminal:
			out.endStatus()
		case working && event.GetSequence() == 1:
			out.note("run %s of %s started at %s", run.GetId(), subject(run), out.moment(run.GetStartedAt()))
			written = time.Now()
		case working && time.Since(written) > progressEvery:
			out.note("%s", progressText(run, *total))
			written = time.Now()
		}
		if !terminal && working && run.GetReason() != reason {
			reason = run.GetReason()
			out.note("%s", cmp.Or(reason, "the run continues"))
		}
		return nil
	}
}

const (
	// backlogTimeout limits the query of the backlog, which progress does not require.
	backlogTimeout = 3 * time.Second
	// countedDue is the largest backlog that the server counts exactly.
	countedDue = 1_000_000
)

// dueFor returns the items due at the start of a run. It returns 0 if the number is unknown: for
// several databases, for a backlog too long to count, or for a dry run.
func dueFor(ctx context.Context, client api, run *pb.Run) int64 {
	ctx, cancel := context.WithTimeout(ctx, backlogTimeout)
	defer cancel()
	done, known := service.Processed(run.GetWorker(), run.GetCounts())
	if !known || run.GetDryRun() {
		return 0
	}
	answer, err := client.GetStatus(ctx, &pb.GetStatusRequest{Worker: run.GetWorker()})
	if err != nil || len(answer.GetWorkers()) != 1 {
		return 0
	}
	st := answer.GetWorkers()[0]
	due := st.GetBacklog().GetDue()
	if due == 0 || due >= countedDue || len(st.GetLeases()) > 1 {
		return 0
	}
	return due + done
}

// progressOf returns the progress of a run through total items, 0 if unknown.
func progressOf(r *pb.Run, total int64) run.Progress {
	done, _ := service.Processed(r.GetWorker(), r.GetCounts())
	elapsed := max(time.Since(r.GetStartedAt().AsTime()), 0).Round(time.Second)
	return run.Progress{Done: done, Total: total, Elapsed: elapsed}
}

// barWidth is the width of the bar in characters.
const barWidth = 20

// bar returns a bar that fills up, or that moves with every event if the total is unknown.
func bar(sequence, percent int64) string {
	if percent > 0 {
		full := int(percent * barWidth / 100)
		return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]"
	}
	at := int(sequence % barWidth)
	return "[" + strings.Repeat(" ", at) + "=" + strings.Repeat(" ", barWidth-1-at) + "]"
}

// progressText describes a running run in one line.
func progressText(run *pb.Run, total int64) string {
	p := progressOf(run, total)
	text := subject(run) + " " + p.Elapsed.String()
	if percent := p.Percent(); percent > 0 {
		text += fmt.Sprintf("  %d%% of the due work", percent)
		if left := p.Left(); left != "" {
			text += ", " + left
		}
	}
	return printable(strings.TrimSpace(fmt.Sprintf("%s  %s  %s", text, counts(run), run.GetReason())))
}

// none represents a missing value in a table.
const none = "-"

// subject returns a run's worker and database.
func subject(run *pb.Run) string {
	text := run.GetWorker()
	if run.GetDatabase() != "" {
		text += " on " + run.GetDatabase()
	}
	if run.GetDryRun() {
		text += " (dry run)"
	}
	return text
}

// counts returns a run's nonzero counts: 2 rows deleted, 1 user failed. For a dry run it returns what
// a run would do: would delete 2 rows (1 record).
func counts(run *pb.Run) string {
	verbs := map[string]string{
		"deferred": "defer", "deleted": "delete", "migrated": "migrate", "moved": "move",
		"nullified": "nullify", "queued": "queue", "rescheduled": "reschedule", "restored": "restore",
		"scheduled": "schedule", "updated": "update",
	}
	var done, would []string
	for _, name := range slices.Sorted(maps.Keys(run.GetCounts())) {
		n := run.GetCounts()[name]
		verb, noun, _ := strings.Cut(name, "_")
		what := format.Number(n) + " " + format.CountName(n, noun)
		switch {
		case n == 0:
		case run.GetDryRun() && verbs[verb] != "":
			would = append(would, verbs[verb]+" "+what)
		case run.GetDryRun() && verb == "processed":
			done = append(done, what)
		default:
			done = append(done, what+" "+verb)
		}
	}
	text := strings.Join(done, ", ")
	switch last := len(would) - 1; {
	case last < 0:
		return text
	case last > 0:
		would = []string{strings.Join(would[:last], ", "), would[last]}
	}
	if text != "" {
		text = " (" + text + ")"
	}
	return "would " + strings.Join(would, " and ") + text
}

// enumText returns the plain text of an enum value: failed for RUN_STATE_FAILED.
func enumText(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
}

func state(run *pb.Run) string { return enumText(run.GetState(), "RUN_STATE_") }

// number formats a count for a table.
func number(n int64) string { return format.Number(n) }

// oneLine joins the lines of a text for tables.
func oneLine(text string) string {
	return strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ").Replace(text)
}

// took returns the duration of a finished run.
func took(run *pb.Run) string {
	if run.GetFinishedAt() == nil {
		return none
	}
	d := run.GetFinishedAt().AsTime().Sub(run.GetStartedAt().AsTime())
	return d.Round(time.Millisecond).String()
}

// nothing is the result of a run with nothing to do.
const nothing = "nothing to do"

// nothingToDo reports whether a run has succeeded without any change, and without a reason for it.
func nothingToDo(run *pb.Run) bool {
	return run.GetState() == pb.RunState_RUN_STATE_SUCCEEDED && counts(run) == "" &&
		(run.GetReason() == "" || whilePaused(run)) && !run.GetOverLimit() && len(run.GetCandidates()) == 0
}

// whilePaused reports whether a dry run took place although its worker is paused. Its reason then
// names the pause.
func whilePaused(run *pb.Run) bool {
	return run.GetDryRun() && strings.HasPrefix(run.GetReason(), fault.ReasonPaused)
}

// describeRun prints a finished run.
func describeRun(out *terminal, run *pb.Run) error {
	out.printColored(state(run), "%s %s in %s", subject(run), state(run), took(run))
	done, why := counts(run), "reason"
	if nothingToDo(run) {
		done = nothing
	}
	if whilePaused(run) {
		why = "note"
	}
	out.fields(
		"run", run.GetId(),
		"counts", done,
		why, run.GetReason(),
		"error", run.GetError(),
		"digest", run.GetCandidatesDigest(),
		"trace", run.GetTraceId())
	if run.GetOverLimit() {
		out.println("  a limit was reached: more work remains")
	}
	if err := describeCandidates(out, run); err != nil {
		return err
	}
	return describeRows(out, run)
}

// describeCandidates prints the candidates of a dry run.
func describeCandidates(out *terminal, run *pb.Run) error {
	if len(run.GetCandidates()) == 0 {
		return nil
	}
	columns := []column{
		col("KIND"), col("ID"), col("NAME", cut), col("ACTION", colored), col("REASON", cut),
	}
	if run.GetDryRun() {
		columns[3].name = "WOULD"
	}
	err := printTable(out, columns, run.GetCandidates(), func(c *pb.Candidate) []any {
		return []any{
			c.GetKind(), c.GetId(), cmp.Or(c.GetName(), none),
			strings.ReplaceAll(c.GetAction(), "_", " "), c.GetReason(),
		}
	})
	if more := run.GetMoreCandidates(); more > 0 {
		out.println("and %s more", number(more))
	}
	return err
}

// describeRows prints the changed rows by table. For a dry run it prints the rows by definition.
func describeRows(out *terminal, run *pb.Run) error {
	if len(run.GetDefinitions()) > 0 {
		columns := []column{col("COLUMN", cut), col("PARENT", cut), col("ACTION"), col("ROWS")}
		return printTable(out, columns, run.GetDefinitions(), func(d *pb.DefinitionCount) []any {
			rows := number(d.GetRows())
			if d.GetAtLeast() {
				rows = "at least " + rows
			}
			return []any{d.GetTable() + "." + d.GetColumn(), d.GetParent(), d.GetAction(), rows}
		})
	}
	return changedRows(out, run.GetTables())
}
