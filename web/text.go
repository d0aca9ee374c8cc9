package web

import (
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/status"
)

// functions returns the functions of the templates.
func (p *pages) functions() template.FuncMap {
	return template.FuncMap{
		"ago": ago, "stamp": stamp, "clock": clock, "rfc": rfc, "span": span, "number": format.Number[int64],
		"words": status.Condition.Text, "tone": fault.Tone, "took": took, "lasted": lasted, "counts": counts,
		"plain": plain, "cause": cause, "trace": p.traceURL, "why": why, "detail": detail, "args": args, "short": short,
		"cut": cut, "actLink": actLink, "hasJobs": p.hasJobs, "asset": func(name string) string { return p.assets[name] },
		"planned": planned, "plannedBy": plannedBy,
		"named": func(name string, of []choice) map[string]any { return map[string]any{"Name": name, "Of": of} },
		"row":   func(run run.Run, named bool) runRow { return runRow{Run: run, Named: named} },
		"fold":  fold, "sentence": sentence, "wide": func(n int) int64 { return int64(n) },
	}
}

// runRow is a run in a list, or Idle: runs without work. Named is set if the list has several workers.
type runRow struct {
	run.Run
	Named bool
	Idle  []run.Run
}

// Tone returns the color of the state: warn for a success with failed, held or deferred items.
func (r runRow) Tone() string {
	if r.State == "succeeded" && slices.ContainsFunc(r.Figures(), func(c count) bool { return c.URL != "" }) {
		return "warn"
	}
	return fault.Tone(r.State)
}

// AllFigures returns the counts of the run. Those of failed, held and deferred items link to lists.
func (r runRow) AllFigures() (all []count) {
	for _, name := range slices.Sorted(maps.Keys(r.Counts)) {
		c := count{Name: format.CountName(r.Counts[name], name), Value: r.Counts[name]}
		first, _, _ := strings.Cut(name, "_")
		switch of := "/workers/" + url.PathEscape(r.Worker); {
		case c.Value == 0:
		case first == "held":
			c.URL = of + "/held"
		case first == "dead", first == "exhausted":
			c.URL = of + "/dead"
		case slices.Contains([]string{"failed", "rescheduled", "deferred"}, first):
			c.URL = of + "/deferred"
		}
		all = append(all, c)
	}
	return all
}

// Figures returns the nonzero counts of the run.
func (r runRow) Figures() []count {
	return slices.DeleteFunc(r.AllFigures(), func(c count) bool { return c.Value == 0 })
}

// idle reports whether a run has ended well and found nothing to do.
func (r runRow) idle() bool {
	return r.State == "succeeded" && !r.DryRun && !r.OverLimit && r.Reason+r.Error == "" &&
		len(r.Tables) == 0 && len(r.Figures()) == 0
}

// fold returns the rows of runs. Consecutive runs that found nothing are one row.
func fold(runs []run.Run, named bool) (rows []runRow) {
	for len(runs) > 0 {
		n := 0
		for n < len(runs) && (runRow{Run: runs[n]}).idle() {
			n++
		}
		if n < 2 {
			rows, n = append(rows, runRow{Run: runs[0], Named: named}), 1
		} else {
			rows = append(rows, runRow{Idle: runs[:n]})
		}
		runs = runs[n:]
	}
	return rows
}

// ago formats a time relative to now.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < -time.Second:
		return "in " + span(-d)
	case d < 2*time.Second:
		return "now"
	}
	return span(d) + " ago"
}

// span formats a duration in one unit.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d.Round(time.Hour)/time.Hour)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

// stamp formats a time to the second, in UTC.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// sentence returns a message as a sentence.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(text[size:], ".") + "."
}

// took formats the duration of a run, so far if it is running.
func took(r run.Run) string {
	end := r.FinishedAt
	if end.IsZero() {
		end = time.Now()
	}
	return lasted(max(end.Sub(r.StartedAt), 0))
}

// lasted formats a duration.
func lasted(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return span(d)
}

// count is one named number of a run. URL is the list of the items, "" for none.
type count struct {
	Name  string
	Value int64
	URL   string
}

// counts returns the nonzero counts by name.
func counts(all map[string]int64) []count { return runRow{Run: run.Run{Counts: all}}.Figures() }

// plain returns a name as plain text: deleted rows for deleted_rows.
func plain(name string) string { return strings.ReplaceAll(name, "_", " ") }

// detail returns the reason for a worker's condition. For an idle worker it returns only the
// remarks, because the page shows its next run elsewhere.
func detail(w status.Worker) string {
	if _, remarks, _ := strings.Cut(w.ConditionDetail, "; "); w.Condition == status.ConditionIdle {
		return remarks
	}
	return w.ConditionDetail
}

// why returns the outcome of a job's last attempt with its reason and error.
func why(j job.Job) string {
	var parts []string
	if j.Outcome != "" {
		parts = append(parts, j.Outcome)
	}
	if j.Reason != "" {
		parts = append(parts, j.Reason)
	}
	if n := len(j.Errors); n > 0 && j.State != "completed" {
		// Omit the reason, which the text already has.
		text := strings.TrimPrefix(j.Errors[n-1].Error, "refused: ")
		if text = strings.TrimPrefix(text, j.Reason+": "); text != j.Reason {
			parts = append(parts, text)
		}
	}
	return cut(strings.Join(parts, " · "))
}

// cut shortens a text for a list.
func cut(text string) string { return format.Shorten(text, 2<<10, "see its page") }

// args returns the set arguments of a job, each as name and value.
func args(raw json.RawMessage) []string {
	fields := map[string]any{}
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	if decoder.Decode(&fields) != nil {
		return nil
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if fields[name] != nil && fields[name] != false {
			out = append(out, fmt.Sprintf("%s %v", plain(name), fields[name]))
		}
	}
	return out
}

// short returns the first 13 characters of an ID, as the command shows it.
func short(id string) string { return id[:min(len(id), len("01a21e76-0223"))] }

// traceURL returns the address of a trace. It is "" without TraceURL, or for an invalid ID.
func (p *pages) traceURL(id string) string {
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id) {
		return ""
	}
	return strings.ReplaceAll(p.config.TraceURL, "{trace_id}", id)
}
