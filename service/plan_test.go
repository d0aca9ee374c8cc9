package service_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// planned is an estate on which plans are made and then done.
type planned struct {
	*pipelineRun
	countSQL *string
}

func newPlanned(t *testing.T, seed uint64) planned {
	t.Helper()
	p := planned{&pipelineRun{Estate: servicetest.New(t, "all", "main"), oracle: oracle.Generate(seed, 1)}, new(string)}
	p.load()
	p.Exec("main", `DELETE FROM maintenance.river_job`)
	p.Exec("main", `DELETE FROM ghost_user_migrations`)
	p.Exec("main", `INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id)
		VALUES (99000, 'ghost2@x', 'ghost2', 0, 'active', 5, 2)`)
	// Paths, and references of many kinds.
	p.Exec("main", `INSERT INTO award_emoji (name, user_id, awardable_id, awardable_type) SELECT 'thumbsup', author_id, id, 'Note' FROM notes WHERE id % 3 = 0`)
	p.Exec("main", `INSERT INTO issue_assignees (user_id, issue_id, namespace_id) SELECT DISTINCT x.author_id, i.id, i.namespace_id FROM issues i JOIN issues x ON i.id = x.id % 50 + 1 AND x.author_id > 0 ON CONFLICT DO NOTHING`)
	p.Exec("main", `UPDATE issues SET updated_by_id = author_id, closed_by_id = author_id % 30 + 20 WHERE id % 2 = 0`)
	p.Exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) SELECT DISTINCT user_id, source_id, 30 FROM members WHERE source_type = 'Project'`)
	p.replace()
	return p
}

func (p planned) plan(kind string, id int) *plan.Plan {
	p.T.Helper()
	plan, err := p.service.PlanDeletion(context.Background(), kind, int64(id))
	assert.Require(p.T, err == nil, "%s %d: %v", kind, id, err)
	return plan
}

// works lets jobs of a kind be worked until the test's end.
func (p planned) works(kind string) {
	p.T.Helper()
	q := p.Queue()
	assert.NoError(p.T, q.Start(servicetest.OnlyKind{Service: p.service, Kind: kind}))
	p.T.Cleanup(func() { assert.NoError(p.T, q.Stop(context.Background())) })
}

// job queues a job, waits for its end, and returns what became of it, without the jobs that it has queued.
func (p planned) job(args jobqueue.Args) (state, reason string) {
	p.T.Helper()
	p.Insert(jobqueue.Job{Args: args})
	p.Eventually("main", `SELECT count(*) FROM maintenance.river_job WHERE finalized_at IS NULL AND kind = '`+args.Kind()+`'`, "0")
	state = p.Value("main", `SELECT state::text FROM maintenance.river_job ORDER BY id LIMIT 1`)
	reason = p.Value("main", `SELECT coalesce(metadata ->> 'reason', '') FROM maintenance.river_job ORDER BY id LIMIT 1`)
	p.Exec("main", `DELETE FROM maintenance.river_job`)
	return state, reason
}

// wantDone fails the test unless exactly what was planned has been deleted, table by table. It
// returns the remainder.
func (p planned) wantDone(plan *plan.Plan, before map[string]int64) (now map[string]int64) {
	p.T.Helper()
	now = p.counts()
	want := map[string]int64{}
	for _, t := range plan.Tables {
		if t.Deleted > 0 {
			want[t.Table] = t.Deleted
		}
		assert.That(p.T, !t.AtLeast && t.Kept == 0, "%s %d: %+v", plan.Kind, plan.ID, t)
	}
	got := map[string]int64{}
	for table, n := range now {
		if gone := before[table] - n; gone != 0 {
			got[table] = gone
		}
	}
	assert.That(p.T, maps.Equal(got, want), "%s %d: gone are\n%v, planned were\n%v", plan.Kind, plan.ID, got, want)
	return now
}

// pathsSQL are what rows know of repositories, as the rows of maintenance.outside_paths have it.
const pathsSQL = `
SELECT 'project_repository ' || disk_path FROM project_repositories
UNION ALL SELECT 'snippet_repository ' || disk_path FROM snippet_repositories ORDER BY 1`

// paths are those that rows know now.
func (p planned) paths() []string {
	p.T.Helper()
	return p.column(pathsSQL)
}

func (p planned) column(sql string) []string {
	p.T.Helper()
	all := p.Value("main", `SELECT string_agg(x.line, E'\n' ORDER BY x.line) FROM (`+sql+`) x (line)`)
	return slices.DeleteFunc(strings.Split(all, "\n"), func(line string) bool { return line == "NULL" })
}

// wantLeft fails the test unless as many paths are gone as were planned, and these are recorded,
// row by row. It forgets them.
func (p planned) wantLeft(plan *plan.Plan, before []string) {
	p.T.Helper()
	now := p.paths()
	gone := slices.DeleteFunc(before, func(path string) bool { return slices.Contains(now, path) })
	noted := p.column(`SELECT kind || ' ' || path FROM maintenance.outside_paths ORDER BY 1`)
	assert.That(p.T, int64(len(gone)) == plan.Outside && slices.Equal(noted, gone),
		"%s %d: left are %v, noted %v, planned were %d", plan.Kind, plan.ID, gone, noted, plan.Outside)
	p.Exec("main", `DELETE FROM maintenance.outside_paths`)
}

// wantUpdated fails the test unless the run has changed what was planned.
func (p planned) wantUpdated(plan *plan.Plan, r run.Run) {
	p.T.Helper()
	want, got := map[string]int64{}, map[string]int64{}
	for _, t := range plan.Tables {
		if n := t.Moved + t.Nullified; n > 0 {
			want[t.Table] = n
		}
	}
	for _, t := range r.Tables {
		if t.Updated > 0 {
			got[t.Table] = t.Updated
		}
	}
	assert.That(p.T, maps.Equal(got, want), "%s %d: changed are %v, planned were %v", plan.Kind, plan.ID, got, want)
}

func TestPlanDeletion_OfAUserIsWhatThenHappens(t *testing.T) {
	p := newPlanned(servicetest.Parallel(t), 5)
	// Project bots go by jobs of their own.
	p.Exec("main", `INSERT INTO members (id, user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 90000 + id, 21, id, 'Project', 'ProjectMember', 30, project_namespace_id FROM projects WHERE namespace_id = $1`, oracle.Personal(oracle.KeptByProject))
	plan := p.plan("user", oracle.KeptByProject)
	assert.That(t, slices.Contains(plan.Jobs, "delete_user"), "a bot goes with a personal project, and %+v", plan)
	p.Exec("main", `DELETE FROM members m USING users u WHERE u.id = m.user_id AND u.user_type = 6 AND m.source_type = 'Project'`)
	p.works("delete_user")
	done, before, refusals := 0, p.counts(), map[string]int{}
	for id := 2; id <= p.oracle.LastUser(); id += 2 {
		if id > 30 && id%8 != 0 { // they are of the same kinds
			continue
		}
		if id%3 == 0 {
			// A row of the queue that is there stays as it is.
			p.Exec("main", `INSERT INTO ghost_user_migrations (user_id, hard_delete, created_at, updated_at) SELECT $1::bigint, true, now(), now()
				WHERE NOT EXISTS (SELECT FROM projects p JOIN namespaces n ON n.id = p.namespace_id AND n.type = 'User' AND n.owner_id = $1::bigint)`, id)
		}
		plan, paths := p.plan("user", id), p.paths()
		assert.That(t, plan.Exact && plan.Name == fmt.Sprint("u", id), "got %+v", plan)
		state, reason := p.job(jobqueue.DeleteUser{UserID: int64(id), SkipAuthorization: true, Reason: "planned"})
		if plan.Refused != nil {
			assert.That(t, state == "cancelled" && plan.Refused.Reason == reason,
				"user %d: %s %s, planned was %+v", id, state, reason, *plan.Refused)
			p.Exec("main", `DELETE FROM ghost_user_migrations WHERE user_id = $1`, id)
			refusals[reason]++
			continue
		}
		r := p.run(servicetest.GhostUsers)
		before = p.wantDone(plan, before)
		p.wantUpdated(plan, r)
		p.wantLeft(plan, paths)
		p.Want("main", fmt.Sprint(`SELECT count(*) FROM users WHERE id = `, id), "0")
		done++
	}
	assert.That(t, done >= 15, "only %d users were planned and done", done)
	assert.Equal(t, fmt.Sprint(refusals), "map[INTERNAL_USER:1 PROTECTED:1 SOLE_OWNER_OF_GROUP:2]")
}

func TestPlanDeletion_OfAGroupIsWhatThenHappens(t *testing.T) {
	p := newPlanned(servicetest.Parallel(t), 7)
	p.works("destroy_group")
	done, refusals := 0, map[string]bool{}
	for _, g := range slices.Backward(p.oracle.Groups()) {
		if p.Value("main", fmt.Sprint(`SELECT count(*) FROM namespaces WHERE id = `, g.ID)) == "0" {
			continue
		}
		plan, paths := p.plan("group", int(g.ID)), p.paths()
		var before map[string]int64
		if plan.Refused == nil {
			before = p.counts()
		}
		_, reason := p.job(jobqueue.DestroyGroup{GroupID: g.ID, UserID: g.By})
		if plan.Refused != nil {
			// The job skips what the worker holds.
			assert.Equal(t, strings.Replace(plan.Refused.Reason, "SCHEDULE_LOST", "NO_LONGER_MARKED", 1), reason, fmt.Sprint("group ", g.ID))
			refusals[plan.Refused.Reason] = true
			continue
		}
		p.wantDone(plan, before)
		p.wantLeft(plan, paths)
		done++
	}
	assert.That(t, done >= 2, "only %d groups were planned and done", done)
	assert.Equal(t, fmt.Sprint(slices.Sorted(maps.Keys(refusals))),
		"[DELETING_USER_MISSING NO_LONGER_MARKED PROTECTED RIGHTS_MISSING SCHEDULE_LOST]")
}

func TestPlanDeletion_OfAPlaceholderNamesWhatKeepsIt(t *testing.T) {
	p := newPlanned(servicetest.Parallel(t), 9)
	free, referenced, before := 0, 0, p.counts()
	for _, user := range p.oracle.Placeholders() {
		plan := p.plan("placeholder", int(user))
		p.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: user}})
		p.Work(p.service, "delete_placeholder_user")
		queued := p.Value("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`) == "1"
		assert.That(t, (plan.Refused == nil) == queued && slices.Contains(plan.Jobs, "delete_user") == queued,
			"user %d: queued %t, planned was %+v", user, queued, plan)
		if !queued {
			referenced++
			assert.That(t, plan.Refused.Reason == "STILL_REFERENCED" &&
				strings.HasSuffix(plan.Refused.Detail, "_id still refers to the user"), "got %+v", *plan.Refused)
			p.Exec("main", `DELETE FROM maintenance.river_job`)
			continue
		}
		if free++; free > 3 {
			break
		}
		p.Work(p.service, "delete_user")
		p.Exec("main", `DELETE FROM maintenance.river_job`)
		p.wantUpdated(plan, p.run(servicetest.GhostUsers))
		before = p.wantDone(plan, before)
	}
	assert.That(t, free != 0 && referenced != 0, "%d went, %d were kept", free, referenced)
	plan := p.plan("placeholder", oracle.Owner)
	assert.That(t, plan.Refused != nil && plan.Refused.Reason == "NOT_A_PLACEHOLDER", "got %+v", plan.Refused)
}

// TestPlanDeletion_WritesNothingSaysWhatIsWrongOrRefusedAndCountsUpToALimit makes plans of which nothing is done.
func TestPlanDeletion_WritesNothingSaysWhatIsWrongOrRefusedAndCountsUpToALimit(t *testing.T) {
	p := newPlanned(servicetest.Parallel(t), 10)
	p.writesNothing()
	p.wrong()
	p.refused()
	p.counted()
}

func (p planned) writesNothing() {
	p.T.Helper()
	t := p.T
	before := devdb.Content(t, p.SQL["main"])
	holder := p.Connect("main")
	tx := assert.Must(holder.Begin(context.Background()))(t)
	for _, table := range []string{"users", "namespaces", "projects", "members", "issues", "notes"} {
		assert.Must(tx.Exec(context.Background(), `SELECT FROM `+table+` FOR UPDATE`))(t)
	}
	user, group := p.plan("user", 20), p.plan("group", oracle.FirstGroup)
	assert.NoError(t, tx.Rollback(context.Background()))
	assert.That(t, len(user.Tables) != 0 && len(group.Tables) != 0 && group.Outside != 0, "planned were %+v, %+v", user, group)
	assert.That(t, maps.Equal(devdb.Content(t, p.SQL["main"]), before), "a plan has written")
	// The same again, until something changes.
	again := p.plan("group", oracle.FirstGroup)
	assert.That(t, reflect.DeepEqual(again.Tables, group.Tables) && again.Digest == group.Digest,
		"nothing has changed, but %+v, was %+v", again, group)
	p.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (9999, 'i', 5, 1, 5001, 9999)`)
	assert.That(t, p.plan("group", oracle.FirstGroup).Digest != group.Digest, "an issue more, and the digest is the same")
}

func (p planned) wrong() {
	p.T.Helper()
	t := p.T
	ctx := context.Background()
	for target, words := range map[[2]string]string{
		{"user", "4711"}: "user 4711 not found", {"group", "4711"}: "group 4711 not found", {"group", fmt.Sprint(oracle.Personal(20))}: "not found",
		{"placeholder", "4711"}: "placeholder 4711 not found",
	} {
		var id int64
		_, _ = fmt.Sscan(target[1], &id)
		_, err := p.service.PlanDeletion(ctx, target[0], id)
		assert.That(t, errors.Is(err, plan.ErrUnknownTarget) && strings.Contains(err.Error(), words), "%s: %v", target, err)
	}
	for field, request := range map[string]func() error{
		"kind": func() error { _, err := p.service.PlanDeletion(ctx, "project", 1); return err },
		"id":   func() error { _, err := p.service.PlanDeletion(ctx, "user", 0); return err },
	} {
		invalid, ok := errors.AsType[*fault.InvalidArgumentError](request())
		assert.That(t, ok && invalid.Field == field, "%s: %v", field, request())
	}
	assert.Must(p.service.Protect(ctx, service.Protection{Kind: "user", ID: 20, Reason: "audit", By: "me"}, 0, false))(t)
	plan := p.plan("user", 20)
	assert.That(t, plan.Refused != nil && plan.Refused.Reason == "PROTECTED" && strings.Contains(plan.Refused.Detail, "audit"),
		"got %+v", plan.Refused)
	assert.Must(p.service.Unprotect(ctx, "user", 20, "me"))(t)
}

func (p planned) refused() {
	p.T.Helper()
	t := p.T
	below := fmt.Sprintf(`SELECT min(id) FROM namespaces WHERE parent_id = %d AND type = 'Group'`, oracle.FirstGroup)
	var child int64
	assert.Must(fmt.Sscan(p.Value("main", below), &child))(t)
	for kind, change := range map[string]func(){
		"group": func() { protect(t, p.service, "group", child) },
		"user":  func() { p.Exec("main", `UPDATE users SET user_type = 11 WHERE id = 20`) },
	} {
		id := map[string]int{"group": oracle.FirstGroup, "user": 20}[kind]
		before := p.plan(kind, id)
		change()
		after := p.plan(kind, id)
		assert.That(t, reflect.DeepEqual(after.Tables, before.Tables) && len(after.Tables) != 0 && after.Exact && after.Outside == before.Outside,
			"%s: %+v, before it was refused %+v", kind, after, before)
		want := map[string]string{
			"group": fmt.Sprintf("PROTECTED group %d is protected by ann: evidence", child),
			"user":  "INTERNAL_USER users of this type are system accounts and are not deleted",
		}[kind]
		r := after.Refused
		assert.That(t, r != nil && r.Reason+" "+r.Detail == want, "%s: %+v, want %s", kind, r, want)
	}
	ghost := p.plan("user", 99000)
	assert.That(t, !ghost.Exact && ghost.Refused != nil, "nobody could take over what is the ghost's, but %+v", ghost)
}

func (p planned) counted() {
	p.T.Helper()
	t := p.T
	p.Exec("main", `INSERT INTO events (author_id, action, group_id, created_at, updated_at) SELECT 20, 1, $1, now(), now() FROM generate_series(1, 10500)`, oracle.FirstGroup)
	for kind, id := range map[string]int{"user": 20, "group": oracle.FirstGroup} {
		got := p.plan(kind, id)
		i := slices.IndexFunc(got.Tables, func(t plan.Table) bool { return t.Table == "events" })
		assert.That(t, i >= 0 && !got.Exact && got.Tables[i].AtLeast && got.Tables[i].Moved+got.Tables[i].Deleted == 10_000,
			"planned were %+v", got.Tables)
	}
}

// A user in the queue, a user whose children are users, and a group that looks marked.
func TestPlanDeletion_SaysWhatTheNextRunWouldSay(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	g.Doomed(27, 28)
	g.Exec("main", `UPDATE users SET state = 'active' WHERE id = 27;
		ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; INSERT INTO application_settings (deletion_adjourned_period) VALUES (14)`)
	g.PersonalProjects(28, 901)
	s := g.Service(g.WithQueue)
	planOf := func(kind string, id int64) *plan.Plan {
		return assert.Must(s.PlanDeletion(t.Context(), kind, id))(t)
	}
	active := planOf("user", 27)
	dry := g.Runs(s, true)
	assert.That(t, active.Refused == nil && active.Exact && len(active.Remarks) == 1 && strings.HasPrefix(active.Remarks[0], "the user is active again"), "%+v", active)
	assert.That(t, len(dry.Candidates) == 2 && dry.Candidates[0].Action == "delete" && dry.Candidates[0].Reason == active.Remarks[0], "%v", dry.Candidates)
	refused := planOf("user", 28).Refused
	assert.That(t, refused != nil && dry.Candidates[1].Reason == refused.Reason+": "+refused.Detail && refused.Reason == "PERSONAL_PROJECTS", "%v, %v", refused, dry.Candidates)
	// Those of user 27 are counted, and the database deletes those of user 29 by itself.
	for id := 29; id < 31; id++ {
		g.User(id, 0)
		g.Exec("main", fmt.Sprintf(`UPDATE users SET manager_id = %d WHERE id = %d`, map[int]int{29: 27, 30: 29}[id], id))
		i := slices.IndexFunc(planOf("user", 27).Tables, func(t plan.Table) bool { return t.Table == "users" })
		got := planOf("user", 27)
		assert.That(t, got.Exact == (id == 29) && got.Tables[i].Deleted == 2, "%d: %+v", id, got)
	}
	g.Exec("main", `UPDATE namespaces SET state = 4 WHERE id = 100`)
	lost := planOf("group", 100).Refused
	assert.That(t, lost != nil && lost.Reason == "SCHEDULE_LOST", "%v", lost)
	held := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.AdjournedGroups, DryRun: true}))(t)
	assert.That(t, fmt.Sprint(held.Candidates) == "[{group 100  hold SCHEDULE_LOST}]", "%v", held.Candidates)
	st := assert.Must(s.Status(t.Context(), servicetest.AdjournedGroups))(t)
	assert.Equal(t, st[0].Backlog.Dead, 1, "groups held")
}
