package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// statusCommand shows the workers, or one of them.
func statusCommand(a *app) *cobra.Command {
	request := &pb.GetStatusRequest{}
	command := &cobra.Command{
		Use:   "status [WORKER]",
		Short: "Show what the workers are doing, or why they are not running",
		Args:  optionalWorker(&request.Worker),
		RunE: call(a, api.GetStatus, request, func(out *terminal, r *pb.GetStatusResponse) error {
			return describeWorkers(out, r.GetWorkers()...)
		}),
	}
	watchFlag(command)
	return command
}

// pauseCommand pauses a worker, or all workers and jobs, on every server. Without --for the pause
// lasts until resume.
func pauseCommand(a *app) *cobra.Command {
	request := &pb.PauseWorkerRequest{}
	command := &cobra.Command{
		Use:   "pause WORKER|--all --reason REASON [--for DURATION]",
		Short: "Pause a worker, or all workers and jobs, on every server",
		RunE: call(a, api.PauseWorker, request, func(out *terminal, r *pb.PauseWorkerResponse) error {
			return describeWorkers(out, r.GetWorker())
		}),
	}
	workerOrAll(command, &request.Worker, "pause all workers and jobs")
	reasonFlag(command, &request.Reason, "reason to show with the pause")
	durationFlag(command, "for", "`duration`, such as 30m or 8h (default: until you resume)", &request.Ttl)
	return command
}

// resumeCommand ends the pause of a worker. --all ends the global pause only.
func resumeCommand(a *app) *cobra.Command {
	request := &pb.ResumeWorkerRequest{}
	command := &cobra.Command{
		Use:   "resume WORKER|--all",
		Short: "End a worker's pause, or the global pause",
		RunE: call(a, api.ResumeWorker, request, func(out *terminal, r *pb.ResumeWorkerResponse) error {
			return describeWorkers(out, r.GetWorker())
		}),
	}
	workerOrAll(command, &request.Worker,
		"end the global pause (set by pause --all), but not the pauses of individual workers")
	return command
}

// describeWorkers prints a line for each worker and the reason for its condition. A worker with
// more than fewDatabases databases also gets lines for them.
func describeWorkers(out *terminal, workers ...*pb.WorkerStatus) error {
	columns := []column{
		col("WORKER"), col("CONDITION", cutLast, colored), col("NEXT RUN", timestamp, dropSecond),
		col("LAST RUN", timestamp, cut, colored), col("LAST SUCCESS", timestamp, dropFirst), col("DUE"),
		col("DEFERRED", dropFirst), col("DEAD"),
	}
	err := printTable(out, columns, workers, func(w *pb.WorkerStatus) []any {
		last, success := lastRun(out, w), out.at(w.GetLastSuccessAt())
		if last == none && success == none && mainIsDown(w) {
			last, success = "not known", "not known"
		}
		condition := enumText(w.GetCondition(), "CONDITION_")
		return slices.Concat([]any{w.GetWorker(), condition, w.GetNextRunAt(), last, success},
			figures(w.GetBacklog()))
	})
	for _, w := range workers {
		explainCondition(out, w)
		if err == nil && len(w.GetDatabases()) > fewDatabases {
			err = describeDatabases(out, w, len(workers) == 1)
		}
	}
	return err
}

// figures returns the numbers of due, deferred and dead items.
func figures(b *pb.Backlog) []any {
	if b == nil {
		return []any{none, none, none}
	}
	return []any{number(b.GetDue()), number(b.GetDeferred()), number(b.GetDead())}
}

// fewDatabases is the largest number of databases for which the worker's line is enough.
const fewDatabases = 3

// describeDatabases writes a line for each database of a worker. Without each, it writes one line
// with the failing databases and the due items of each database.
func describeDatabases(out *terminal, w *pb.WorkerStatus, each bool) error {
	out.println("")
	if each {
		columns := []column{
			col("DATABASE"), col("DUE"), col("DEFERRED"), col("DEAD"), col("PROBLEM", cut),
		}
		return printTable(out, columns, w.GetDatabases(), func(d *pb.DatabaseStatus) []any {
			return slices.Concat([]any{d.GetDatabase()}, figures(d.GetBacklog()),
				[]any{cmp.Or(d.GetProblem(), none)})
		})
	}
	var problems, due []string
	for _, d := range w.GetDatabases() {
		if d.GetProblem() != "" {
			problems = append(problems, d.GetDatabase())
		}
		if n := d.GetBacklog().GetDue(); n > 0 {
			due = append(due, d.GetDatabase()+" "+number(n))
		}
	}
	text := fmt.Sprintf("%s has %d databases.", w.GetWorker(), len(w.GetDatabases()))
	if len(problems) > 0 {
		text += " Failing: " + format.List(problems) + "."
	}
	if len(due) > 0 {
		text += " Due: " + format.List(due) + "."
	}
	out.paragraph("", text+" To show each database, run `caretaker status "+w.GetWorker()+"`")
	return nil
}

// explainCondition writes the reason for a worker's condition, and how to fix it.
func explainCondition(out *terminal, w *pb.WorkerStatus) {
	if detail := w.GetConditionDetail(); detail != "" {
		out.println("")
		out.paragraph("", w.GetWorker()+": "+out.localized(strings.TrimPrefix(detail, w.GetWorker()+" ")))
	}
	if f := w.GetFailing(); f != nil {
		class := strings.TrimPrefix(f.GetClass().String(), "FAILURE_CLASS_")
		out.paragraph("  ", "class "+class+": "+remedy(out, w))
	}
	if dead := w.GetBacklog().GetDead(); dead > 0 && w.GetWorker() == lfk.Name {
		out.println("")
		out.paragraph("", w.GetWorker()+": "+format.Pluralize(dead, "dead record")+
			": run `caretaker lfk dead` to list the records")
	}
	if pages := listPages(w); pages != "" {
		out.println("")
		out.paragraph("", w.GetWorker()+": see the status page (web_listen) for "+pages)
	}
	if p := w.GetPaused(); p != nil && w.GetCondition() != pb.Condition_CONDITION_PAUSED {
		end := "until it is resumed"
		if p.GetUntil() != nil {
			end = "until " + out.moment(p.GetUntil())
		}
		out.paragraph("", fmt.Sprintf("%s: paused by %s since %s, %s: %s",
			w.GetWorker(), p.GetBy(), out.moment(p.GetSince()), end, p.GetReason()))
	}
}

// listPages names the pages for dead and deferred items that no command lists. It returns ""
// without such items.
func listPages(w *pb.WorkerStatus) string {
	var pages []string
	switch w.GetWorker() {
	case group.Name, ghost.Name, placeholder.Name:
		if n := w.GetBacklog().GetDead(); n > 0 {
			pages = append(pages, fmt.Sprintf("%s at /workers/%s/dead", format.Pluralize(n, "dead item"), w.GetWorker()))
		}
		if n := w.GetBacklog().GetDeferred(); n > 0 {
			pages = append(pages, fmt.Sprintf("%s at /workers/%s/deferred", format.Pluralize(n, "deferred item"), w.GetWorker()))
		}
	}
	return strings.Join(pages, " and ")
}

// mainIsDown reports whether main, which has the records of runs, does not answer.
func mainIsDown(w *pb.WorkerStatus) bool {
	f := w.GetFailing()
	return f.GetClass() == pb.FailureClass_FAILURE_CLASS_UNREACHABLE && f.GetDatabase() == "main"
}

// remedy returns how to fix a failing worker, as in the table of classes in docs/operate/runbook.md.
func remedy(out *terminal, w *pb.WorkerStatus) string {
	switch w.GetFailing().GetClass() {
	case pb.FailureClass_FAILURE_CLASS_UNREACHABLE:
		return "check the database (caretaker reconnects automatically)"
	case pb.FailureClass_FAILURE_CLASS_SCHEMA:
		if strings.Contains(w.GetConditionDetail()+w.GetFailing().GetMessage(), "42501") {
			return "run `caretaker doctor --grants`, and apply its output as the owner of the tables"
		}
		advice := "run `caretaker migrate`, or correct the table, column or privilege that the error names"
		if w.GetWorker() == lfk.Name {
			advice += ", and run `caretaker lfk lint` to check the definitions"
		}
		return advice
	case pb.FailureClass_FAILURE_CLASS_LOCK, pb.FailureClass_FAILURE_CLASS_TIMEOUT:
		return "this problem usually resolves itself. If not, check pg_stat_activity for long transactions. " +
			nextAttempt(out, w)
	case pb.FailureClass_FAILURE_CLASS_DATA:
		return "correct the rows that violate the constraint or condition that the error names"
	case pb.FailureClass_FAILURE_CLASS_LEASE_LOST:
		return "no data is lost. " + nextAttempt(out, w)
	case pb.FailureClass_FAILURE_CLASS_SETTING:
		return "correct the application's setting. " + nextAttempt(out, w)
	case pb.FailureClass_FAILURE_CLASS_SCHEDULER:
		return "restart this server, and report a bug"
	case pb.FailureClass_FAILURE_CLASS_INTERNAL, pb.FailureClass_FAILURE_CLASS_UNSPECIFIED:
	}
	return "run `caretaker runs " + w.GetWorker() + "` to find the ID of the run, then read the log of the run"
}

// nextAttempt returns the time of the worker's next run, and how to run it now.
func nextAttempt(out *terminal, w *pb.WorkerStatus) string {
	now := "To start a run now, run `caretaker run " + w.GetWorker() + "`"
	if w.GetNextRunAt() == nil {
		return now
	}
	return "The next run starts at " + out.moment(w.GetNextRunAt()) + ". " + now
}

// lastRun returns state and end of the last run, or none.
func lastRun(out *terminal, w *pb.WorkerStatus) string {
	if w.GetLastRun() == nil {
		return none
	}
	text := state(w.GetLastRun()) + " " + out.at(w.GetLastRun().GetFinishedAt())
	if w.GetLastRun().GetDryRun() {
		text += " (dry run)"
	}
	return text
}
