package deletion_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeleteUser(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		blocksTheBotAndQueuesItForTheGhostMigration, accountsOfTheSystemStay,
		reasonOfTheTokensIsCheckedAgain, actorNeedsTheRightUnlessItIsSkipped,
		whoIsGoneAfterTheRemovalHasBegunIsSkipped, twoJobsForOneUserFinishItTogether,
		ofWhateverStateTypeOrTokensForOtherReasons,
	)
}

func blocksTheBotAndQueuesItForTheGhostMigration(e *servicetest.Estate) {
	e.Bots(7, 8)
	e.User(9, 0, 1)
	e.Group(50, 0)
	for _, user := range []int{7, 8, 9} {
		e.Member(user, 50)
	}
	e.Token(7, "true", servicetest.Never, servicetest.LongAgo)
	e.Alive(8)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(e.T, servicetest.RunTokens(e.T, s), "examined_users=2 scheduled_jobs=1")
	servicetest.WantDeletion(e.T, e.DeletionAgain(s), servicetest.DeletionDone)
	wantUser(e, 7, "blocked 0 0 101,f,6")
	e.Want("main", `SELECT concat_ws(' ', consume_after <= now(), created_at = updated_at, created_at <= now()) FROM ghost_user_migrations`, "t t t")
	e.Want("main", `SELECT count(*) FROM personal_access_tokens WHERE user_id = 7`, "1")
	before := e.Value("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT string_agg(g::text, ' ') FROM ghost_user_migrations g) FROM users u`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.InactiveBot()), servicetest.DeletionDone)
	e.Want("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT string_agg(g::text, ' ') FROM ghost_user_migrations g) FROM users u`, before)
	for _, user := range []int{8, 9} {
		wantUser(e, user, "active 1 0")
	}
	// It is in the queue now, and left out.
	servicetest.WantCounts(e.T, servicetest.RunTokens(e.T, s), "examined_users=2")
}

func accountsOfTheSystemStay(e *servicetest.Estate) {
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	// A user who is missing is skipped quietly.
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionSkipped+"TARGET_GONE")
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.InactiveBot()), servicetest.DeletionSkipped+"TARGET_GONE")
	assert.That(e.T, !strings.Contains(log.String(), "job finished"), "not quiet: %s", log)
	for userType := range 19 {
		e.User(200+userType, userType, 1)
		e.Insert(servicetest.JobOf(servicetest.Authorized(int64(200 + userType))))
	}
	e.Work(s, "delete_user")
	for userType := range 19 {
		user := 200 + userType
		want, rows := servicetest.DeletionRefused+"INTERNAL_USER", "active 0 0"
		switch userType {
		case 0, 6, 13, 15:
			want, rows = servicetest.DeletionDone, fmt.Sprintf("blocked 0 0 f,%d", userType)
		}
		servicetest.WantDeletion(e.T, e.Value("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', ''))
			FROM maintenance.river_job WHERE (args ->> 'user_id')::integer = $1`, user), want)
		wantUser(e, user, rows)
	}
	assert.Equal(e.T, strings.Count(log.String(), `"level":"WARN"`), 15, "warnings")
	if !strings.Contains(log.String(), `"outcome":"refused","reason":"INTERNAL_USER","attempt":1,"run_id":"","duration_seconds"`) || !strings.Contains(log.String(), `"user_id":205`) {
		e.T.Errorf("log: %s", log)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE attempt > 1 OR state NOT IN ('completed', 'cancelled')`, "0")
}

func reasonOfTheTokensIsCheckedAgain(e *servicetest.Estate) {
	set := func(value string) string {
		return `UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings(value) + `'`
	}
	token := func(user string) string {
		return `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (` + user + `, 't', 1, now(), now())`
	}
	const mine = ` WHERE user_id = {bot}`
	e.Group(50, 0)
	s := e.Service("", e.WithQueue)
	for i, c := range []struct{ name, sql, want string }{
		{"a new token", token("{bot}"), servicetest.DeletionSkipped + "TOKEN_ACTIVE"},
		{"a token revoked lately", `UPDATE personal_access_tokens SET revoked = true, updated_at = now() AT TIME ZONE 'UTC'` + mine, servicetest.DeletionSkipped + "TOKEN_ACTIVE"},
		{"more days now", set("500"), servicetest.DeletionSkipped + "TOKEN_ACTIVE"},
		{"fewer days now", set("1"), servicetest.DeletionDone},
		{"setting switched off", set("null"), servicetest.DeletionSkipped + "SETTING_OFF"},
		{"setting invalid", set(`"42"`), servicetest.DeletionFailed + " SETTING_INVALID"},
		{"a human", `UPDATE users SET user_type = 0 WHERE id = {bot}`, servicetest.DeletionSkipped + "NOT_A_BOT"},
		{"a service account", `UPDATE users SET user_type = 13 WHERE id = {bot}`, servicetest.DeletionSkipped + "NOT_A_BOT"},
		{"a ghost", `UPDATE users SET user_type = 5 WHERE id = {bot}`, servicetest.DeletionRefused + "INTERNAL_USER"},
		{"nothing has changed", `SELECT 1`, servicetest.DeletionDone},
		{"a token of somebody else", token("101"), servicetest.DeletionDone},
		{"the dead token is gone", `DELETE FROM personal_access_tokens` + mine, servicetest.DeletionDone},
		{"expired on the last day now", `UPDATE personal_access_tokens SET expires_at = (now() AT TIME ZONE 'UTC' - interval '42 days')::date` + mine, servicetest.DeletionSkipped + "TOKEN_ACTIVE"},
		{"expired the day before", `UPDATE personal_access_tokens SET expires_at = (now() AT TIME ZONE 'UTC' - interval '42 days')::date - 1` + mine, servicetest.DeletionDone},
		{"setting absent, 30 days", `DELETE FROM application_settings`, servicetest.DeletionDone},
	} {
		bot := 1000 + i
		e.Exec("main", `DELETE FROM maintenance.river_job; `+set("42"))
		e.Bots(bot)
		e.Member(bot, 30)
		e.Token(bot, "false", "{c_date} - 100", servicetest.LongAgo)
		args := servicetest.InactiveBot()
		args.UserID = int64(bot)
		e.Insert(servicetest.JobOf(args))
		e.Exec("main", strings.ReplaceAll(c.sql, "{bot}", fmt.Sprint(bot)))
		state := `SELECT u::text || (SELECT coalesce(string_agg(t::text, ' '), '') FROM personal_access_tokens t WHERE user_id = u.id) FROM users u WHERE id = ` + fmt.Sprint(bot)
		before := e.Value("main", state)
		got := e.DeletionAgain(s)
		assert.That(e.T, got == c.want, "%s: job is %q, want %q", c.name, got, c.want)
		if c.name == "setting invalid" {
			e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, servicetest.TokenSettingKey+` in application_settings.resource_access_tokens_settings is "42":`+
				` set it to a whole number of days from 1 to 36500, or to null to disable the deletion`)
		}
		left := e.Value("main", fmt.Sprintf(`SELECT (SELECT count(*) FROM members WHERE user_id = %d) || ' ' || (SELECT count(*) FROM ghost_user_migrations WHERE user_id = %[1]d)`, bot))
		switch {
		case got == servicetest.DeletionDone && left != "0 1":
			e.T.Errorf("%s: memberships and rows of the queue %s", c.name, left)
		case got != servicetest.DeletionDone && (left != "1 0" || e.Value("main", state) != before):
			e.T.Errorf("%s: not deleted, and changed", c.name)
		}
	}
}

func actorNeedsTheRightUnlessItIsSkipped(e *servicetest.Estate) {
	const nobody, itself = -1, 0
	for user := 1; user <= 4; user++ {
		e.User(user, 0, 1)
	}
	e.Exec("main", `UPDATE users SET admin = id <> 3, state = CASE id WHEN 2 THEN 'blocked' WHEN 4 THEN NULL ELSE 'active' END WHERE id <= 4`)
	s := e.Service("", e.WithQueue)
	for i, c := range []struct {
		name       string
		actor      int64
		skip, done bool
	}{
		{"active admin", 1, false, true},
		{"blocked admin", 2, false, false},
		{"normal user", 3, false, false},
		{"admin without a state", 4, false, false},
		{"nobody of that id", 999, false, false},
		{"nobody", nobody, false, false},
		{"the user", itself, false, true},
		{"skipped: normal user", 3, true, true},
		{"skipped: blocked admin", 2, true, true},
		{"skipped: nobody of that id", 999, true, true},
		{"skipped: nobody", nobody, true, true},
		{"skipped: the user", itself, true, true},
		{"skipped: admin bot, another group", 102, true, true},
	} {
		bot := 20 + i
		e.Bots(bot)
		args := jobqueue.DeleteUser{UserID: int64(bot), SkipAuthorization: c.skip, Reason: "because"}
		by := ""
		if c.actor != nobody {
			args.DeletedByID = new(cmp.Or(c.actor, int64(bot)))
			by = fmt.Sprint(*args.DeletedByID, ",")
		}
		want, rows := servicetest.DeletionDone, "blocked 0 0 "+by+"f,6"
		if !c.done {
			want, rows = servicetest.DeletionRefused+"NOT_AUTHORIZED", "active 0 0"
		}
		got, left := e.Deletion(s, args), e.UserRows(bot)
		assert.That(e.T, got == want && left == rows, "%s: job is %q, user %q, want %q, %q", c.name, got, left, want, rows)
	}
}

func ofWhateverStateTypeOrTokensForOtherReasons(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	// The state becomes blocked, unless it is banned.
	for i, state := range []string{"'active'", "NULL", "'deactivated'", "'ldap_blocked'", "'blocked_pending_approval'", "'blocked'", "'banned'"} {
		user := 10 + i
		e.User(user, 0, 1)
		e.Exec("main", fmt.Sprintf(`UPDATE users SET state = %s, updated_at = '2001-01-01' WHERE id = %d`, state, user))
		e.Insert(servicetest.JobOf(servicetest.Authorized(int64(user))))
	}
	e.Work(s, "delete_user")
	e.Want("main", endedDeletions, "7 "+servicetest.DeletionDone)
	e.Want("main", `SELECT string_agg(concat_ws(' ', id, state, updated_at > '2001-01-01', (SELECT count(*) FROM ghost_user_migrations WHERE user_id = u.id)), ', ' ORDER BY id) FROM users u WHERE id < 100`,
		"10 blocked t 1, 11 blocked t 1, 12 blocked t 1, 13 blocked t 1, 14 blocked t 1, 15 blocked f 1, 16 banned f 1")
	// A user without a type is queued as a human.
	e.User(7, 0, 1)
	e.Exec("main", `ALTER TABLE users DROP CONSTRAINT users_user_type_check; UPDATE users SET user_type = NULL WHERE id = 7`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	wantUser(e, 7, "blocked 0 0 f,0")
	// A row in the queue stays as it is.
	const queued = `SELECT concat_ws(' ', g.ctid, g.xmin, g) FROM ghost_user_migrations g WHERE user_id = 8`
	e.Bots(8)
	e.Exec("main", `INSERT INTO ghost_user_migrations (user_id, initiator_user_id, hard_delete, consume_after, user_type, created_at, updated_at)
		VALUES (8, 5, true, '2040-01-01', 0, '2001-01-01', '2001-01-01')`)
	before := e.Value("main", queued)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(8)), servicetest.DeletionDone)
	e.Want("main", queued, before)
	e.Want("main", `SELECT state FROM users WHERE id = 8`, "blocked")
	// Tokens do not count, nor does their setting, nor need they be there.
	e.Bots(9, 17)
	e.Alive(9)
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = '`+servicetest.TokenSettings("null")+`'`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(9)), servicetest.DeletionDone)
	e.Exec("main", `DROP TABLE personal_access_tokens`)
	servicetest.WantDeletion(e.T, e.Deletion(e.Service("", e.WithQueue), servicetest.Authorized(17)), servicetest.DeletionDone)
}

// wantUser fails the test unless a user has these rows.
func wantUser(e *servicetest.Estate, user int, want string) {
	e.T.Helper()
	assert.Equal(e.T, e.UserRows(user), want, "user", user)
}

func TestMain(m *testing.M) { servicetest.Main(m) }
