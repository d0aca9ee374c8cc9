package run

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

func TestExpected_TheFirstHundredThatArePassedOverAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	x := &Execution{
		Log:  slog.New(slog.NewTextHandler(&log, nil)),
		only: map[target]string{{repo.KindUser, 7}: ActionDelete},
	}
	for id := range int64(150) {
		if got := x.Expected(repo.KindUser, id, ActionDelete); got != (id == 7) {
			t.Errorf("user %d: %t", id, got)
		}
	}
	if lines := strings.Count(log.String(), "passed over, not in the plan"); lines != 100 {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(log.String(), "kind=user id=0\n") {
		t.Error(log.String())
	}
}

// digestOf is that of a dry run that finds these.
func digestOf(found ...repo.Candidate) string {
	x := &Execution{DryRun: true, found: candidates{digest: sha256.New()}}
	for _, c := range found {
		x.Candidate(c)
	}
	return hex.EncodeToString(x.found.digest.Sum(nil))
}

// A digest says who is worked on, in which order, what is done and why, and nothing else: no text of one
// candidate can be taken for another one.
func FuzzCandidatesDigest(f *testing.F) {
	f.Add("user", int64(1), "queue", "", "user", int64(2), "queue", "")
	f.Add("user", int64(1), "queue", "a\n", "group", int64(1), "hold", "\"b\"")
	f.Add("user", int64(1), "queue", "x\"\nuser 2 queue \"", "user", int64(2), "queue", "")
	f.Fuzz(func(t *testing.T, kind string, id int64, action, reason, kind2 string, id2 int64, action2, reason2 string) {
		// Kinds and actions are words of ours.
		kinds, actions := []string{"user", "group", "placeholder"}, []string{ActionDelete, ActionQueue, ActionHold}
		one := repo.Candidate{Kind: kinds[len(kind)%3], ID: id, Action: actions[len(action)%3], Reason: reason}
		two := repo.Candidate{Kind: kinds[len(kind2)%3], ID: id2, Action: actions[len(action2)%3], Reason: reason2}
		renamed := one
		renamed.Name = reason2
		same := one == two
		switch {
		case digestOf(one) != digestOf(renamed):
			t.Error("the name is in the digest")
		case (digestOf(one) == digestOf(two)) != same:
			t.Errorf("%+v and %+v are alike: %t", one, two, !same)
		case (digestOf(one, two) == digestOf(two, one)) != same:
			t.Error("the order is not in the digest")
		case digestOf(one) == digestOf(one, two) || digestOf(one) == digestOf():
			t.Error("one more makes no difference")
		}
	})
}

// A plan's digest does not depend on the order in which its tables and jobs were counted.
func FuzzPlanDigest(f *testing.F) {
	f.Add("issues", int64(3), "notes", int64(4), "delete_user")
	f.Add("a", int64(0), "a", int64(-1), "")
	f.Fuzz(func(t *testing.T, table string, n int64, other string, m int64, job string) {
		digest := func(first, second string, a, b int64) string {
			p := &Plan{Kind: "user", ID: 1, Exact: true, tables: map[string]*PlannedTable{}}
			p.tables[first] = &PlannedTable{Table: first, Deleted: a}
			if first != second {
				p.tables[second] = &PlannedTable{Table: second, Deleted: b}
			}
			p.Jobs = append(p.Jobs, "destroy_group", job)
			if err := p.Finish(); err != nil {
				t.Fatal(err)
			}
			return p.Digest
		}
		if table != other && digest(table, other, n, m) != digest(other, table, m, n) {
			t.Error("the order of tables is in the digest")
		}
		if n != 0 && table != other && digest(table, other, n, m) == digest(table, other, n+1, m) {
			t.Error("the number of rows is not in the digest")
		}
	})
}

func TestPlan_ThatTakesTooLongHasCountedAtLeastWhatItHas(t *testing.T) {
	t.Parallel()
	p := &Plan{Exact: true, ends: time.Now().Add(-time.Second), tables: map[string]*PlannedTable{"issues": {Table: "issues", Deleted: 7}}}
	err := p.CheckStop()
	if !errors.Is(err, ErrPlanTime) {
		t.Fatal(err)
	}
	if err := p.Absorb(t.Context(), err); err != nil || p.Exact || !p.tables["issues"].AtLeast || p.tables["issues"].Deleted != 7 {
		t.Errorf("%v, %+v", err, p)
	}
}
