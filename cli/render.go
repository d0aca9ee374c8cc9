package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// none stands in a table for what is not there.
const none = "-"

// barWidth is how wide the bar of a run at work is.
const barWidth = 20

// bar moves with every event: how much is left to do changes while a run works, so it cannot fill up.
func bar(sequence int64) string {
	at := int(sequence % barWidth)
	return "[" + strings.Repeat(" ", at) + "=" + strings.Repeat(" ", barWidth-1-at) + "]"
}

// progressText is a run at work in one line.
func progressText(run *maintenancev1.Run, now time.Time) string {
	text := subject(run) + " " + max(now.Sub(run.GetStartedAt().AsTime()), 0).Round(time.Second).String()
	return strings.TrimSpace(text + "  " + counts(run) + "  " + run.GetReason())
}

// subject is what a run works on.
func subject(run *maintenancev1.Run) string {
	text := run.GetWorker()
	if run.GetDatabase() != "" {
		text += " on " + run.GetDatabase()
	}
	if run.GetDryRun() {
		text += " (dry run)"
	}
	return text
}

// counts are those that are not zero.
func counts(run *maintenancev1.Run) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(run.GetCounts())) {
		if n := run.GetCounts()[name]; n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), n))
		}
	}
	return strings.Join(parts, ", ")
}

// word is an enum's value as people say it: RUN_STATE_FAILED is failed.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
}

func state(run *maintenancev1.Run) string { return word(run.GetState(), "RUN_STATE_") }

// at is a time in UTC, as the log has it.
func at(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return t.AsTime().UTC().Format("2006-01-02 15:04:05")
}

// took is how long a run worked, or has worked.
func took(run *maintenancev1.Run) string {
	if run.GetFinishedAt() == nil {
		return none
	}
	return run.GetFinishedAt().AsTime().Sub(run.GetStartedAt().AsTime()).Round(time.Millisecond).String()
}

// describeRun prints a run that has ended.
func (a *app) describeRun(run *maintenancev1.Run) error {
	a.say("%s %s in %s", subject(run), state(run), took(run))
	done := counts(run)
	if done == "" && run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED {
		done = "nothing to do"
	}
	for _, line := range []struct{ name, text string }{
		{"run", run.GetId()},
		{"counts", done},
		{"reason", run.GetReason()},
		{"error", asCommands(run.GetError())},
		{"trace", run.GetTraceId()},
	} {
		if line.text != "" {
			a.say("  %-7s %s", line.name, line.text)
		}
	}
	if run.GetOverLimit() {
		a.say("  a limit was reached: more is left to do")
	}
	return a.describeRows(run)
}

// describeRows prints what changed by table, or for dry runs what would change by definition.
func (a *app) describeRows(run *maintenancev1.Run) error {
	var rows [][]string
	if len(run.GetDefinitions()) > 0 {
		for _, d := range run.GetDefinitions() {
			number := strconv.FormatInt(d.GetRows(), 10)
			if d.GetAtLeast() {
				number = "at least " + number
			}
			rows = append(rows, []string{d.GetTable() + "." + d.GetColumn(), d.GetParent(), d.GetAction(), number})
		}
		return a.table([]string{"COLUMN", "PARENT", "ACTION", "ROWS"}, rows)
	}
	if len(run.GetTables()) == 0 {
		return nil
	}
	for _, t := range run.GetTables() {
		rows = append(rows, []string{t.GetTable(), strconv.FormatInt(t.GetDeleted(), 10), strconv.FormatInt(t.GetUpdated(), 10)})
	}
	return a.table([]string{"TABLE", "DELETED", "UPDATED"}, rows)
}

// line prints a message as JSON in one line.
func (a *app) line(message proto.Message) error {
	out, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("write the event as JSON: %w", err)
	}
	a.say("%s", out)
	return nil
}
