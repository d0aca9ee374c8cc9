package service

import (
	"fmt"
	"slices"

	"github.com/caretaker-go/caretaker/service/run"
)

// DatabaseStatus is where a worker stands on one of its databases.
type DatabaseStatus struct {
	Name string
	// Backlog is the zero value where it is not known.
	Backlog Backlog
	Known   bool
	// Problem is what keeps its runs from their work there; "": nothing does.
	Problem string
}

// rank orders databases by what somebody has to look at.
func (d DatabaseStatus) rank() int {
	switch {
	case d.Problem != "":
		return 0
	case d.Backlog.Dead > 0:
		return 1
	case d.Backlog.Due > 0:
		return 2
	}
	return 3
}

// databasesOf are the databases of a worker that has several: those with a problem first, then those
// with something dead, with something due, and the others, each in the order of the rotation.
func databasesOf(w *run.Worker, places []place, found problems) (all []DatabaseStatus) {
	if len(w.Databases) < 2 {
		return nil
	}
	for i, d := range w.Databases {
		status := DatabaseStatus{Name: d.Name, Backlog: places[i].backlog, Known: places[i].known}
		if n := slices.IndexFunc(found, func(f Failing) bool { return f.Database == d.Name }); n >= 0 {
			status.Problem = found[n].Message
		}
		all = append(all, status)
	}
	slices.SortStableFunc(all, func(a, b DatabaseStatus) int { return a.rank() - b.rank() })
	return all
}

// maxTold is how many problems, and how many remarks of databases, a status has in words.
const maxTold = 5

// firstTold are the first of some texts, with how many there are besides.
func firstTold(texts []string, what string) []string {
	if more := len(texts) - maxTold; more > 0 {
		return append(slices.Clone(texts[:maxTold]), fmt.Sprintf("%d more %s", more, what))
	}
	return texts
}
