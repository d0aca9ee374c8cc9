package repo_test

import (
	"bytes"
	"context"
	"log/slog"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// pair is a database with a standby, and a plain connection to each. The database under test has
// the standby as its replica. Messages about that go to said.
type pair struct {
	*bench
	standby *devdb.Cluster
	mirror  *pgx.Conn
	said    *bytes.Buffer
}

func newPair(t *testing.T, schema string) *pair {
	t.Helper()
	url := replicated.Clone(t, servicetest.Migrated(schema))
	standby := assert.Must(replicated.Cluster(t).Standby(t.Context(), nil))(t)
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	sql := servicetest.Connect(t, url)
	estate := &servicetest.Estate{T: t, SQL: map[string]*pgx.Conn{"main": sql}}
	p := &pair{bench: &bench{T: t, estate: estate, url: url, sql: sql}, standby: standby, said: &bytes.Buffer{}}
	p.mirror = servicetest.Connect(t, p.mirrorURL())
	p.Database = p.opened(url, p.mirrorURL())
	return p
}

// opened is the database with another URL for itself, or for its replica.
func (p *pair) opened(url, replica string) *repo.Database {
	p.Helper()
	d := servicetest.Open(p.T, url)
	assert.NoError(p.T, d.UseReplica(p.Context(), replica, slog.New(slog.NewTextHandler(p.said, nil))))
	return d
}

// mirrorURL is that of the database on the standby.
func (p *pair) mirrorURL() string {
	name, _, _ := strings.Cut(path.Base(p.url), "?")
	return p.standby.URL(name)
}

// pause stops the standby's replay, replay lets it go on until it has caught up.
func (p *pair) pause() {
	p.Helper()
	p.caughtUp()
	p.onMirror(`SELECT pg_wal_replay_pause()`)
	p.until(func() bool { return p.onMirror(`SELECT pg_get_wal_replay_pause_state()`) == "paused" })
}

func (p *pair) replay() {
	p.Helper()
	p.onMirror(`SELECT pg_wal_replay_resume()`)
	p.caughtUp()
}

func (p *pair) caughtUp() {
	p.Helper()
	written := p.value(`SELECT pg_current_wal_insert_lsn()`)
	p.until(func() bool { return p.onMirror(`SELECT pg_last_wal_replay_lsn() >= '`+written+`'::pg_lsn`) == "true" })
}

func (p *pair) until(holds func() bool) {
	p.Helper()
	devdb.Eventually(p, "the replica", holds)
}

// onMirror reads one value on the standby as text.
func (p *pair) onMirror(sql string) string {
	p.Helper()
	return devdb.OnStandby(p, p.mirror, sql)
}

const someWorker = "ghost_user_migration"

// run is a run of a worker that holds its lease.
func (p *pair) run() (*repo.Reader, fencing.Lease) {
	p.Helper()
	lease := assert.Must(p.Leases.AcquireLease(p.Context(), someWorker, "us", time.Minute))(p.T)
	return p.Reader(someWorker, lease.Epoch), lease
}

// write is a write of the run.
func (p *pair) write(r *repo.Reader) {
	p.Helper()
	p.exec(`INSERT INTO maintenance.feature_flags VALUES (gen_random_uuid(), true)`)
	r.Wrote(p.Database.Database)
}

// end is the end of the run. With died no process learns of it.
func (p *pair) end(r *repo.Reader, lease fencing.Lease, died bool) {
	p.Helper()
	if !died {
		assert.NoError(p.T, r.SavePosition(p.Context()))
	}
	assert.NoError(p.T, p.Leases.ReleaseLease(p.Context(), lease.Fence))
}

// reads searches for candidates and reports where: "replica", or why on the primary.
func (p *pair) reads(r *repo.Reader) string {
	p.Helper()
	assert.Must(p.Jobs.CountDiscardedJobs(repo.ReadBy(p.Context(), r), "delete_user", "{}"))(p.T)
	places, why := r.Source()
	if why == "" {
		if !strings.Contains(places, "replica") {
			p.Errorf("read from %q", places)
		}
		return "replica"
	}
	return why
}

// wantReplica waits for the replica to be read. After a lag it is skipped for a second.
func (p *pair) wantReplica(r *repo.Reader) {
	p.Helper()
	p.until(func() bool { return p.reads(r) == "replica" })
}

func (p *pair) wantPrimary(r *repo.Reader, why string) {
	p.Helper()
	if got := p.reads(r); !strings.Contains(got, why) {
		p.Errorf("read from %s, want the primary because %s", got, why)
	}
}

const isBehind = "the replica has not replayed the last write yet"

func TestFault_Reader_TheReplicaIsReadOnceItHasReplayedTheLastWriteOfARun(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	first, lease := p.run()
	p.wantReplica(first)
	p.write(first)
	p.wantReplica(first)
	p.pause()
	p.exec(`INSERT INTO maintenance.feature_flags VALUES ('somebody else''s', true)`)
	p.wantReplica(first)
	p.write(first)
	p.wantPrimary(first, isBehind)
	p.replay()
	p.wantReplica(first)
	p.end(first, lease, false)

	// The next run knows the last write.
	first, lease = p.run()
	p.write(first)
	p.end(first, lease, false)
	p.pause()
	p.exec(`INSERT INTO maintenance.feature_flags VALUES ('one more of somebody else''s', true)`)
	p.wantReplica(p.Reader(someWorker, 0))

	idle, lease := p.run()
	p.wantReplica(idle)
	// A run running may have written anything.
	p.wantPrimary(p.Reader(someWorker, 0), isBehind)
	p.end(idle, lease, false)

	<-time.After(time.Second) //nolint:gocritic // elapses: for so long a replica that lags is skipped
	writer, lease := p.run()
	p.wantReplica(writer)
	p.write(writer)
	p.end(writer, lease, false)
	p.wantPrimary(p.Reader(someWorker, 0), isBehind)
	next, lease := p.run()
	p.wantPrimary(next, isBehind)
	p.replay()
	p.wantReplica(next)
	p.end(next, lease, false)
}

func TestFault_Reader_ARunThatDiedHasLeftNothingToRelyOn(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	first, lease := p.run()
	p.write(first)
	p.end(first, lease, false)
	p.pause()
	doomed, lease := p.run()
	p.wantReplica(doomed)
	p.exec(`INSERT INTO maintenance.feature_flags VALUES ('written by the doomed', true)`)
	p.end(doomed, lease, true)

	next, lease := p.run()
	p.wantPrimary(next, isBehind)
	p.wantPrimary(p.Reader(someWorker, 0), isBehind)
	p.end(next, lease, false)
	p.wantPrimary(p.Reader(someWorker, 0), isBehind)
	p.replay()
	p.wantReplica(p.Reader(someWorker, 0))
}

func TestReader_WithoutAReplicaReadsThePrimaryWithoutAQuestion(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	r := b.Reader(someWorker, 1)
	r.Wrote(b.Database.Database)
	assert.Must(b.Jobs.CountDiscardedJobs(repo.ReadBy(t.Context(), r), "delete_user", "{}"))(t)
	places, why := r.Source()
	assert.That(t, r == nil && places == "" && why == "", "%v: %q, %q", r, places, why)
	assert.NoError(t, r.SavePosition(t.Context()))
	b.want(`SELECT count(*) FROM maintenance.replica_positions`, "0")
}

// wantTrouble reads twice and fails the test unless the primary was read for this reason, said in one line.
func (p *pair) wantTrouble(d *repo.Database, why string) {
	p.Helper()
	p.said.Reset()
	r := d.Reader(someWorker, 0)
	for range 2 {
		p.until(func() bool {
			assert.Must(d.Jobs.CountDiscardedJobs(repo.ReadBy(p.Context(), r), "delete_user", "{}"))(p.T)
			_, got := r.Source()
			return got != isBehind // as it may be on a busy machine
		})
		if places, got := r.Source(); places != "primary" || !strings.Contains(got, why) {
			p.Errorf("read from %s because %q, want the primary because %s", places, got, why)
		}
	}
	if n := strings.Count(p.said.String(), "replica skipped"); n != 1 || !strings.Contains(p.said.String(), why) {
		p.Errorf("%d lines about %s: %s", n, why, p.said)
	}
}

func TestFault_Replica_WhateverIsWrongWithItThePrimaryIsRead(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	p.wantReplica(p.Reader(someWorker, 0))
	assert.NoError(t, p.CheckReplica(t.Context()))
	for name, c := range map[string]struct{ url, why, check string }{
		"the primary itself":   {p.url, "the server is not a standby", "not a standby"},
		"another cluster":      {databases.Clone(t, servicetest.Migrated("main")), "different clusters", "different clusters"},
		"nobody there":         {"postgres://nobody@127.0.0.1:1/none?sslmode=disable", "the replica is unreachable", "unreachable"},
		"another database":     {p.standby.URL("postgres"), "the replica refuses the query: 42P01", ""},
		"a wrong password":     {strings.Replace(p.mirrorURL(), "caretaker:", "caretaker:not", 1), "the replica", "password"},
		"a database not there": {p.standby.URL("none"), "the replica", "none"},
	} {
		d := p.opened(p.url, c.url)
		p.wantTrouble(d, c.why)
		if err := d.CheckReplica(t.Context()); c.check != "" {
			servicetest.WantError(t, err, c.check)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFault_Replica_QueryThatWaitsOrIsCancelledIsLeftToThePrimary(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	p.wantReplica(p.Reader(someWorker, 0))
	// The lock comes with the log, and stays while replay is paused. On the primary it is gone.
	tx := assert.Must(p.sql.Begin(t.Context()))(t)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE maintenance.river_job IN ACCESS EXCLUSIVE MODE; SELECT txid_current()`); err != nil {
		t.Fatal(err)
	}
	p.until(func() bool {
		return p.onMirror(`SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'maintenance.river_job'::regclass`) == "1"
	})
	p.onMirror(`SELECT pg_wal_replay_pause()`)
	p.until(func() bool { return p.onMirror(`SELECT pg_get_wal_replay_pause_state()`) == "paused" })
	assert.NoError(t, tx.Rollback(t.Context()))
	r := p.Reader(someWorker, 0)
	ctx, cancel := context.WithTimeout(repo.ReadBy(t.Context(), r), devdb.WaitTimeout)
	defer cancel()
	p.exec(`INSERT INTO maintenance.replica_positions VALUES ('` + someWorker + `', 1, 1, '0/1')`)
	p.exec(`INSERT INTO maintenance.leases VALUES ('` + someWorker + `', 'us', 1, now(), now(), now())`)
	assert.Must(p.Jobs.CountDiscardedJobs(ctx, "delete_user", "{}"))(t)
	if places, why := r.Source(); places != "primary" || !strings.Contains(why, "too slow") {
		t.Errorf("read from %s because %q", places, why)
	}
}

func TestFault_Replica_PromotedIsNoReplicaAnyMore(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	p.wantReplica(p.Reader(someWorker, 0))
	p.onMirror(`SELECT pg_promote()`)
	p.wantTrouble(p.Database, "the server is not a standby")
	servicetest.WantError(t, p.CheckReplica(t.Context()), "not a standby")
}

func TestFault_Replica_ThatComesBackIsReadAgain(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	p.wantReplica(p.Reader(someWorker, 0))
	p.exec(`ALTER TABLE maintenance.river_job RENAME TO hidden`)
	p.caughtUp()
	p.until(func() bool {
		r := p.Reader(someWorker, 0)
		if _, err := p.Jobs.CountDiscardedJobs(repo.ReadBy(t.Context(), r), "delete_user", "{}"); err == nil {
			t.Error("no error from the primary")
		}
		_, why := r.Source()
		return strings.Contains(why, "the replica refuses the query: 42P01")
	})
	p.exec(`ALTER TABLE maintenance.hidden RENAME TO river_job`)
	p.caughtUp()
	p.wantReplica(p.Reader(someWorker, 0))
	assert.Equal(t, strings.Count(p.said.String(), "replica in use again"), 1, "lines in", p.said)
}

func TestFault_InactiveBots_WhatAReplicaSaysIsJudgedAgainOnThePrimary(t *testing.T) {
	p := newPair(servicetest.Parallel(t), "main")
	p.exec(`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	for _, id := range []string{"1", "2", "3", "4"} {
		p.exec(`INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES (` + id + `, 'u` + id + `', 'u` + id + `', 0, 'active', 6, 1)`)
	}
	p.exec(`INSERT INTO maintenance.replica_positions VALUES ('` + someWorker + `', 1, 1, '0/1')`)
	p.exec(`INSERT INTO maintenance.leases VALUES ('` + someWorker + `', 'us', 1, now(), now(), now())`)
	p.pause()
	p.wantReplica(p.Reader(someWorker, 0))
	p.exec(`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (1, 't', 1, now(), now())`)
	p.exec(`UPDATE users SET user_type = 0 WHERE id = 2`)
	p.exec(`INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES (5, 'u5', 'u5', 0, 'active', 6, 1)`)
	features := assert.Must(p.Users.UserFeatures(t.Context()))(t)
	for _, c := range []struct {
		after, limit int
		want         gitlab.BotRange
	}{
		{0, 3, gitlab.BotRange{Examined: 3, Last: 3, More: true, Inactive: []int64{3}, Organizations: []int64{1}}},
		// The replica takes bot 4 for the last one.
		{3, 3, gitlab.BotRange{Examined: 2, Last: 5, Inactive: []int64{4, 5}, Organizations: []int64{1, 1}}},
	} {
		r := p.Reader(someWorker, 0)
		rules := gitlab.NewTokenRules(time.Now(), 30)
		got, err := p.Tokens.InactiveBots(repo.ReadBy(t.Context(), r), features, rules,
			gitlab.BotPage{After: int64(c.after), Limit: c.limit}, fencing.Limits{Statement: 5 * time.Second})
		assert.That(t, err == nil && reflect.DeepEqual(got, c.want), "behind %d: %+v, %v, want %+v", c.after, got, err, c.want)
		if places, _ := r.Source(); places != "replica" {
			t.Errorf("read from %s", places)
		}
	}
}
