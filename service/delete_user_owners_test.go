package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/service"
)

// held does something in a transaction, and when so many others wait for locks, or a minute is over, what comes then; it
// commits.
func (e *estate) held(sql string, waiting int, then ...string) {
	e.t.Helper()
	ctx, conn := context.Background(), e.connect("main")
	tx, err := conn.Begin(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, sql); err != nil {
		e.t.Fatal(err)
	}
	watch, ended := e.connect("main"), make(chan error, 1)
	go func() {
		awaitLocks(ctx, watch, waiting)
		for _, sql := range then {
			if _, err := tx.Exec(ctx, sql); err != nil {
				ended <- err
				return
			}
		}
		ended <- tx.Commit(ctx)
	}()
	e.t.Cleanup(func() {
		if err := <-ended; err != nil {
			e.t.Error(err)
		}
	})
}

// awaitLocks waits until so many connections to the database wait for a lock.
func awaitLocks(ctx context.Context, conn *pgx.Conn, waiting int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var n int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		if err != nil || n >= waiting {
			return
		}
	}
}

// endedDeletions are how the jobs delete_user ended, and how many did so.
const endedDeletions = `SELECT string_agg(format('%s %s', n, how), ', ' ORDER BY how) FROM (
	SELECT count(*) AS n, concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) AS how
	FROM maintenance.river_job WHERE kind = 'delete_user' GROUP BY 2) ended`

func TestDeleteUser_OfTwoOwnersWhoGoAtOnceOneStays(t *testing.T) {
	t.Parallel()
	// User 7 is an owner of group 50, whose parents are 51 and 52.
	for name, c := range map[string]struct{ owner, isolation string }{
		"of the group":         {memberSQL(`8, 50, 50`), "read committed"},
		"of one in a circle":   {`UPDATE namespaces SET parent_id = 50 WHERE id = 52;` + memberSQL(`8, 51, 50`), "read committed"},
		"with older snapshots": {memberSQL(`8, 50, 50`), "repeatable read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.exec("main", `DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+c.isolation+`'); END $do$`)
			e.user(7, 0, 1)
			e.user(8, 0, 1)
			e.user(9, 0, 1)
			e.group(52, 0)
			e.group(51, 52)
			e.group(50, 51)
			e.member(7, 50)
			e.exec("main", `DO $do$ BEGIN `+c.owner+`; END $do$`)
			e.personalProjects(9, 901)
			e.exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 901, 50), (8, 901, 50)`)
			s := e.service("", e.withQueue)
			e.insert(jobOf(authorized(7)), jobOf(authorized(8)))
			// Whoever comes first has left the group, which nobody sees yet, when the other one's turn comes.
			e.held(`SELECT FROM project_authorizations FOR UPDATE`, 2)
			e.work(s, "delete_user")
			e.want("main", endedDeletions, "1 cancelled refused SOLE_OWNER_OF_GROUP, 1 completed succeeded")
			e.want("main", `SELECT count(*) FROM members WHERE source_type = 'Namespace'`, "1")
		})
	}
}

func TestDeleteUser_GroupsKeepAnOwnerWhenAllAreToGoAtOnce(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
		SELECT i, 'u' || i, 'u' || i, 0, 'active', 6, 1 FROM generate_series(1001, 1040) i`)
	e.exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1, 20) i`)
	// Owners 1001 and 1021 have group 1 and the next, and so on in a circle: each waits for two trees.
	e.exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT u, g, 'Namespace', 'GroupMember', 50, g FROM generate_series(1001, 1040) u, LATERAL (VALUES (1 + (u - 1001) % 20), (1 + (u - 1000) % 20)) v (g)`)
	first, second := e.service("", e.withQueue), e.service("", e.withQueue)
	for id := int64(1001); id <= 1040; id++ {
		e.insert(jobOf(authorized(id)))
	}
	other := e.queue()
	if err := other.Start(onlyKind{second, "delete_user"}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	e.work(first, "delete_user")
	e.want("main", `SELECT count(*) FROM namespaces n WHERE NOT EXISTS (SELECT FROM members m WHERE m.source_id = n.id AND m.source_type = 'Namespace')`, "0")
	e.want("main", `SELECT count(*) FROM maintenance.river_job WHERE attempt > 1 OR state NOT IN ('completed', 'cancelled')`, "0")
}

// coOwner makes user 7 an owner of a group and of an organization, and 8 the other owner of one of
// them.
func coOwner(t *testing.T, shared string) *estate {
	t.Helper()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.user(8, 0, 1)
	if shared == "group" {
		e.group(50, 0)
		e.member(7, 50)
		e.member(8, 50)
	} else {
		e.exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
			VALUES (1, 7, 50, now(), now()), (1, 8, 50, now(), now())`)
	}
	return e
}

// elsewhere moves jobs to a queue that nobody works.
func (e *estate) elsewhere(condition string) {
	e.t.Helper()
	e.exec("main", `UPDATE maintenance.river_job SET queue = 'elsewhere' WHERE `+condition)
}

// workHere works the jobs delete_user that are due, except those that are elsewhere.
func (e *estate) workHere(s *service.Service) {
	e.t.Helper()
	q := e.queue()
	if err := q.Start(onlyKind{s, "delete_user"}); err != nil {
		e.t.Fatal(err)
	}
	e.eventually("main", `SELECT count(*) FROM maintenance.river_job WHERE queue = 'default' AND finalized_at IS NULL`, "0")
	if err := q.Stop(context.Background()); err != nil {
		e.t.Error(err)
	}
}

func TestDeleteUser_WhoIsToGoDoesNotCountAsAnOwner(t *testing.T) {
	t.Parallel()
	job := func(state string) string {
		finalized := "NULL"
		if state == "completed" || state == "cancelled" || state == "discarded" {
			finalized = "now()"
		}
		return fmt.Sprintf(`INSERT INTO maintenance.river_job (kind, args, state, attempted_at, finalized_at, max_attempts)
			VALUES ('delete_user', '{"user_id": 8, "reason": "x"}', '%s', now(), %s, 25)`, state, finalized)
	}
	for name, c := range map[string]struct {
		sql   string
		owner bool
	}{
		"removal begun":              {`INSERT INTO maintenance.user_removals (user_id, reason) VALUES (8, 'x')`, false},
		"in the ghosts' queue":       {`INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, false},
		"in the queue of other name": {`ALTER TABLE ghost_user_migrations RENAME TO users_ghost_user_migrations; INSERT INTO users_ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, false},
		"job available":              {job("available"), false},
		"job pending":                {job("pending"), false},
		"job scheduled":              {job("scheduled"), false},
		"job retryable":              {job("retryable"), false},
		"job at work that decides":   {job("running"), true},
		"job completed":              {job("completed"), true},
		"job refused":                {job("cancelled"), true},
		"job discarded":              {job("discarded"), true},
		"job of another kind":        {`INSERT INTO maintenance.river_job (kind, args, state, max_attempts) VALUES ('delete_placeholder_user', '{"user_id": 8}', 'scheduled', 25)`, true},
		"somebody else goes":         {`INSERT INTO maintenance.user_removals (user_id, reason) VALUES (9, 'x')`, true},
		"the user's own other job":   {`INSERT INTO maintenance.river_job (kind, args, state, max_attempts) VALUES ('delete_user', '{"user_id": 7}', 'scheduled', 25)`, true},
		"who goes marked and queued": {`INSERT INTO maintenance.user_removals (user_id, reason) VALUES (8, 'x'); ` + job("available"), false},
		"blocked, and nothing begun": {`UPDATE users SET state = 'blocked' WHERE id = 8`, true},
	} {
		for _, shared := range []string{"group", "organization"} {
			t.Run(name+", "+shared, func(t *testing.T) {
				t.Parallel()
				e := coOwner(t, shared)
				s := e.service("", e.withQueue)
				e.insert(jobOf(authorized(7)))
				e.exec("main", c.sql)
				e.elsewhere(`args ->> 'reason' IS DISTINCT FROM 'Group was deleted'`)
				e.workHere(s)
				want := "cancelled refused SOLE_OWNER_OF_" + strings.ToUpper(shared)
				if c.owner {
					want = done
				}
				e.want("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) FROM maintenance.river_job
					WHERE args @> '{"user_id": 7, "reason": "Group was deleted"}'`, want)
			})
		}
	}
}

func TestDeleteUser_OfTwoOwnersOneGoesAndOfTheOtherNothingIsTouched(t *testing.T) {
	t.Parallel()
	for _, shared := range []string{"group", "organization"} {
		for _, at := range []string{"at once", "one after the other"} {
			t.Run(shared+" "+at, func(t *testing.T) {
				t.Parallel()
				e := coOwner(t, shared)
				e.personalProjects(7, 701)
				e.personalProjects(8, 801)
				s := e.service("", e.withQueue)
				e.insert(jobOf(authorized(7)), jobOf(authorized(8)))
				if at == "at once" {
					e.held(`SELECT FROM users FOR UPDATE`, 2)
				} else {
					e.elsewhere(`args @> '{"user_id": 8}'`)
					e.workHere(s)
					e.want("main", remains, "701,801 701,801 701,801 2")
					e.exec("main", `UPDATE maintenance.river_job SET queue = 'default' WHERE args @> '{"user_id": 8}'`)
				}
				e.work(s, "delete_user")
				e.want("main", endedDeletions, "1 cancelled refused SOLE_OWNER_OF_"+strings.ToUpper(shared)+", 1 completed succeeded")
				stays, goes := 7, 8
				if e.value("main", `SELECT state FROM users WHERE id = 7`) == "blocked" {
					stays, goes = 8, 7
				}
				e.want("main", remains, fmt.Sprintf("%d01 %d01 %d01 1", stays, stays, stays))
				memberships := map[string]int{"group": 2, "organization": 1}[shared]
				if got, want := e.userRows(stays), fmt.Sprintf("active %d 1", memberships); got != want {
					t.Errorf("user %d, who stays: %s, want %s", stays, got, want)
				}
				if got := e.userRows(goes); got != "blocked 0 0 f,0" {
					t.Errorf("user %d, who goes: %s", goes, got)
				}
				e.want("main", begun, "")
			})
		}
	}
}
