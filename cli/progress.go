package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// progressEvery is how often a run's progress is written where the output is no terminal.
const progressEvery = 5 * time.Second

// progress shows a run at work on the standard error: on a terminal as one line that changes, else
// as a line when it starts, every five seconds, and when its reason changes.
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
			_, _ = fmt.Fprintf(out.std.Err, "\r\033[K%s %s",
				bar(event.GetSequence(), percentOf(run, *total)), progressText(run, *total))
		case terminal:
			_, _ = fmt.Fprint(out.std.Err, "\r\033[K")
		case working && event.GetSequence() == 1:
			out.note("run %s of %s started at %s", run.GetId(), subject(run), out.moment(run.GetStartedAt()))
			written = time.Now()
		case working && time.Since(written) > progressEvery:
			out.note("%s", progressText(run, *total))
			written = time.Now()
		}
		if !terminal && working && run.GetReason() != reason {
			reason = run.GetReason()
			out.note("%s", cmp.Or(reason, "the run goes on"))
		}
		return nil
	}
}

const (
	// backlogTime bounds the question how much is due: progress can be shown without an answer.
	backlogTime = 3 * time.Second
	// countedDue is up to how much of a backlog is counted: more is not known.
	countedDue = 1_000_000
)

// dueFor is how much a run has to do, with what it has done; 0 if that is not known: the backlog is
// that of several databases, or too long to be counted, or the run is dry.
func dueFor(ctx context.Context, client api, run *pb.Run) int64 {
	ctx, cancel := context.WithTimeout(ctx, backlogTime)
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

// percentOf is how much of what was due is done, at most 99 while the run is at work; 0 if that is
// not known.
func percentOf(run *pb.Run, total int64) int64 {
	done, known := service.Processed(run.GetWorker(), run.GetCounts())
	if !known || total <= 0 || done > total {
		return 0
	}
	return min(done*100/total, 99)
}

// barWidth is in characters.
const barWidth = 20

// bar fills up, or moves with every event where nobody knows how much is left to do.
func bar(sequence, percent int64) string {
	if percent > 0 {
		full := int(percent * barWidth / 100)
		return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]"
	}
	at := int(sequence % barWidth)
	return "[" + strings.Repeat(" ", at) + "=" + strings.Repeat(" ", barWidth-1-at) + "]"
}

// progressText is a run at work in one line.
func progressText(run *pb.Run, total int64) string {
	elapsed := max(time.Since(run.GetStartedAt().AsTime()), 0).Round(time.Second)
	text := subject(run) + " " + elapsed.String()
	if percent := percentOf(run, total); percent > 0 {
		text += fmt.Sprintf("  %d %% of what was due", percent)
		if left := leftOf(run, total, elapsed); left != "" {
			text += ", " + left
		}
	}
	return printable(strings.TrimSpace(fmt.Sprintf("%s  %s  %s", text, counts(run), run.GetReason())))
}

// steady is how long a run is at work before its speed says something.
const steady = 3 * time.Second

// leftOf is how long what is left takes at the speed so far, in words; "" if that cannot be said
// yet.
func leftOf(run *pb.Run, total int64, elapsed time.Duration) string {
	done, _ := service.Processed(run.GetWorker(), run.GetCounts())
	if elapsed < steady || done <= 0 {
		return ""
	}
	left := time.Duration(float64(elapsed) * float64(total-done) / float64(done))
	switch {
	case left < 10*time.Second:
		return "a few seconds left"
	case left < 90*time.Second:
		return fmt.Sprintf("about %d s left", left.Round(10*time.Second)/time.Second)
	case left < 90*time.Minute:
		return fmt.Sprintf("about %d min left", left.Round(time.Minute)/time.Minute)
	}
	return fmt.Sprintf("about %d h left", left.Round(time.Hour)/time.Hour)
}
