package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// none stands in a table for a missing value.
const none = "-"

// subject is a run's worker, with the database that it works on.
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

// counts are a run's counts that are not zero.
func counts(run *pb.Run) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(run.GetCounts())) {
		if n := run.GetCounts()[name]; n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), n))
		}
	}
	return strings.Join(parts, ", ")
}

// word is an enum's value in plain text: RUN_STATE_FAILED is failed.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
}

func state(run *pb.Run) string { return word(run.GetState(), "RUN_STATE_") }

// number is a count in a table.
func number(n int64) string { return strconv.FormatInt(n, 10) }

// oneLine is a text of several lines in one, for tables.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// took is how long a run that has ended worked.
func took(run *pb.Run) string {
	if run.GetFinishedAt() == nil {
		return none
	}
	d := run.GetFinishedAt().AsTime().Sub(run.GetStartedAt().AsTime())
	return d.Round(time.Millisecond).String()
}

// describeRun prints a run that has ended.
func describeRun(out *terminal, run *pb.Run) error {
	out.printColored(state(run), "%s %s in %s", subject(run), state(run), took(run))
	done := counts(run)
	if done == "" && run.GetState() == pb.RunState_RUN_STATE_SUCCEEDED {
		done = "nothing to do"
	}
	heading := "counts"
	if run.GetDryRun() && counts(run) != "" {
		heading = "would be"
	}
	out.fields(
		"run", run.GetId(),
		heading, done,
		"reason", run.GetReason(),
		"error", asCommands(run.GetError()),
		"digest", run.GetCandidatesDigest(),
		"trace", run.GetTraceId())
	if run.GetOverLimit() {
		out.println("  a limit was reached: more is left to do")
	}
	if err := describeCandidates(out, run); err != nil {
		return err
	}
	return describeRows(out, run)
}

// describeCandidates prints what a dry run would work on.
func describeCandidates(out *terminal, run *pb.Run) error {
	if len(run.GetCandidates()) == 0 {
		return nil
	}
	columns := []column{col("KIND"), col("ID"), col("NAME", cut), col("ACTION", colored), col("REASON", cut)}
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
		out.println("and %d more", more)
	}
	return err
}

// describeRows prints the rows changed by table, or for dry runs the rows found by definition.
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
