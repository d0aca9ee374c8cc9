package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

func TestReplica_CandidatesAreReadThereAndDecidedOnThePrimary(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	m.candidates()
	s := m.service()
	m.replayed(placeholderWorker, groupWorker, ghostWorker)
	for worker, counts := range map[string]string{
		placeholderWorker: "scheduled_jobs=3", groupWorker: "scheduled_jobs=3", ghostWorker: "migrated_users=3 deleted_rows=12",
	} {
		m.wantRead(candidateQueries()[worker], 0)
		m.caughtUp()
		if from := m.run(s, worker, counts); !strings.Contains(from, "replica") {
			t.Errorf("%s: read from %q", worker, from)
		}
		m.wantRead(candidateQueries()[worker], -1)
	}
	// To open a pass is to write, and on a busy machine the replica may take longer than that is waited for.
	m.wantRead(candidateQueries()[tokenWorker], 0)
	waitFor(t, "a pass over the bots on the replica", func() bool {
		r := runTokens(t, s)
		wantState(t, r, repo.RunSucceeded)
		return strings.Contains(m.readFrom(r.ID), "replica")
	})
	m.wantRead(candidateQueries()[tokenWorker], -1)
	m.want("main", queuedUsers, "201 202 203")
	for _, decision := range []string{"FOR SHARE", "FROM maintenance.runs", "FROM application_settings", "q.hard_delete", "AS ripe"} {
		m.wantRead(decision, 0)
	}
	m.want("main", `SELECT count(DISTINCT lsn) FROM maintenance.replica_positions WHERE name <> 'somebody'`, "4")
}

func TestReplica_WhileItLacksTheWorkersLastWriteThePrimaryIsRead(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	m.candidates()
	s := m.service()
	for worker, counts := range map[string]string{
		tokenWorker: "examined_users=3 scheduled_jobs=3", placeholderWorker: "scheduled_jobs=3", groupWorker: "scheduled_jobs=3",
		ghostWorker: "migrated_users=3 deleted_rows=12",
	} {
		m.pause()
		m.exec("main", `INSERT INTO maintenance.feature_flags VALUES ($1, true)`, worker)
		if from := m.run(s, worker, counts); from != "primary" {
			t.Errorf("%s, first run: read from %q", worker, from)
		}
		m.inFavour()
		again := ""
		if worker == tokenWorker {
			again = "examined_users=3"
		}
		if from := m.run(s, worker, again); from != "primary" {
			t.Errorf("%s, replay paused: read from %q", worker, from)
		}
		m.replay()
		m.pause()
		// What others write is not waited for.
		m.exec("main", `INSERT INTO maintenance.feature_flags VALUES ($1, true)`, worker+" again")
		want := "replica"
		if worker == tokenWorker {
			want = "primary" // to open a pass is to write
		}
		if from := m.run(s, worker, again); !strings.Contains(from, want) {
			t.Errorf("%s, replayed: read from %q", worker, from)
		}
		m.replay()
	}
}

func TestReplica_StaleCandidatesDecideNothing(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	s := m.service()
	m.candidates()
	m.replayed(placeholderWorker, groupWorker, ghostWorker)
	m.pause()
	m.exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 401 WHERE id = 301`)
	m.detail(304, 0, "NULL")
	m.exec("main", `DELETE FROM group_deletion_schedules WHERE group_id = 401`)
	m.exec("main", `UPDATE group_deletion_schedules SET marked_for_deletion_on = current_date WHERE group_id = 402`)
	m.exec("main", `DELETE FROM ghost_user_migrations WHERE user_id = 501`)
	m.exec("main", `UPDATE ghost_user_migrations SET consume_after = now() + interval '1 hour' WHERE user_id = 502`)
	for worker, counts := range map[string]string{
		// The end of the placeholders is looked for on the primary.
		placeholderWorker: "scheduled_jobs=3",
		groupWorker:       "scheduled_jobs=1", ghostWorker: "migrated_users=1 deleted_rows=4",
	} {
		m.inFavour()
		if from := m.run(s, worker, counts); !strings.Contains(from, "replica") {
			t.Errorf("%s: read from %q", worker, from)
		}
	}
	m.want("main", jobsOfPlaceholders, "302 303 304")
	m.want("main", `SELECT string_agg(args ->> 'group_id', ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "403")
	m.want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE id > 500 AND id < 600`, "501 502")
	m.want("main", `SELECT deletion_attempts FROM import_placeholder_user_details WHERE id = 301`, "0")
}

func TestReplica_GoneInTheMiddleOfARunCostsNothing(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	m.candidates()
	m.gate("main", "import_placeholder_user_details", "OLD.id = 302")
	s := m.service()
	m.caughtUp()
	m.shut("main", caretakerApp)
	r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: placeholderWorker, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	m.atGate("main", caretakerApp)
	if err := m.standby.Kill(); err != nil {
		t.Fatal(err)
	}
	// If it was behind before, it is left alone for a second.
	time.Sleep(1100 * time.Millisecond)
	m.lift("main", caretakerApp)
	r = ended(t, s, r.ID)
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "scheduled_jobs=3")
	m.want("main", jobsOfPlaceholders, "301 302 303")
	if n := strings.Count(m.log.String(), "replica not read"); n != 1 {
		t.Errorf("%d lines: %s", n, m.log)
	}
	st, err := s.Status(t.Context(), placeholderWorker)
	if err != nil || st[0].Condition == service.ConditionFailing || !strings.Contains(st[0].ConditionDetail, "read from its primary: the replica was left out") {
		t.Errorf("%s %q, %v", st[0].Condition, st[0].ConditionDetail, err)
	}
}

func TestReplica_AfterARunThatDiedBeforeItsLastWriteWasRememberedThePrimaryIsRead(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	s := m.service()
	m.run(s, placeholderWorker, "")
	m.candidates()
	m.gate("main", "import_placeholder_user_details", "OLD.id = 302")
	m.pause()
	m.shut("main", "doomed")
	doomed := m.start("doomed", devdb.Definitions(), func(o *processOrder) {
		o.Worker, o.Database, o.BatchSize, o.Replica = placeholderWorker, "", 1, m.mirrorURL()
	})
	m.atGate("main", "doomed")
	m.wantRead(candidateQueries()[placeholderWorker], -1)
	doomed.kill()
	m.lift("main", "doomed")
	m.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	m.exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE name = $1`, placeholderWorker)
	m.want("main", fmt.Sprintf(`SELECT l.epoch - p.epoch FROM maintenance.leases l JOIN maintenance.replica_positions p USING (name) WHERE name = '%s'`, placeholderWorker), "1")
	if from := m.run(s, placeholderWorker, "scheduled_jobs=2"); from != "primary" {
		t.Errorf("read from %q", from)
	}
	m.want("main", jobsOfPlaceholders, "301 302 303")
	m.want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "1 1 1")
}

func TestReplica_BacklogsAreReadThere(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	m.candidates()
	s := m.service(func(c *service.Config) {
		service.Settings[loosefk.Config](c).Definitions = load(t, devdb.Definitions())
	})
	m.caughtUp()
	waitFor(t, "all backlogs to be read from the replica", func() bool {
		all, err := m.service(func(c *service.Config) {
			service.Settings[loosefk.Config](c).Definitions = load(t, devdb.Definitions())
		}).Status(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, st := range all {
			if !strings.Contains(st.ConditionDetail, "backlog of main read from its primary") {
				n++
			}
		}
		return n == 5
	})
	st, err := s.Status(t.Context(), placeholderWorker)
	if err != nil || st[0].Backlog.Due != 3 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestReplica_PipelineOracle pauses and resumes replay between the rounds.
func TestReplica_PipelineOracle(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	p := &pipelineRun{estate: m.estate, pipelineEstate: generatePipeline(7), change: []func(*service.Config){logTo(m.log)}}
	p.load(p.estate)
	p.gate("main", "notes")
	p.onRound = func(round int) {
		m.replay()
		if round%2 == 1 {
			m.pause()
		}
	}
	p.replace()
	p.killed(func(o *processOrder) { o.Worker, o.Database, o.Replica = ghostWorker, "", m.mirrorURL() })
	p.toTheEnd()
	m.replay()
	p.compare()
	if said := m.log.String(); !strings.Contains(said, `"read_from":"replica`) || !strings.Contains(said, "primary") {
		t.Error("the replica was not read, or the primary never")
	}
}
