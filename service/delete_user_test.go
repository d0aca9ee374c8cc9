package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

func TestDeleteUser_BlocksTheBotAndQueuesItForTheGhostMigration(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(7, 8)
	e.user(9, 0, 1)
	e.group(50, 0)
	for _, user := range []int{7, 8, 9} {
		e.member(user, 50)
	}
	e.token(7, "true", never, longAgo)
	e.alive(8)
	s := e.service("", e.withQueue)
	wantCounts(t, runTokens(t, s), "examined_users=2 scheduled_jobs=1")
	wantDeletion(t, e.deletionAgain(s), done)
	if got := e.userRows(7); got != "blocked 0 0 101,f,6" {
		t.Errorf("bot: %s", got)
	}
	e.want("main", `SELECT concat_ws(' ', consume_after <= now(), created_at = updated_at, created_at <= now()) FROM ghost_user_migrations`, "t t t")
	e.want("main", `SELECT count(*) FROM personal_access_tokens WHERE user_id = 7`, "1")
	before := e.value("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT string_agg(g::text, ' ') FROM ghost_user_migrations g) FROM users u`)
	wantDeletion(t, e.deletion(s, inactiveBot()), done)
	e.want("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT string_agg(g::text, ' ') FROM ghost_user_migrations g) FROM users u`, before)
	for _, user := range []int{8, 9} {
		if got := e.userRows(user); got != "active 1 0" {
			t.Errorf("user %d: %s", user, got)
		}
	}
	// It is in the queue now, and left out.
	wantCounts(t, runTokens(t, s), "examined_users=2")
}

func TestDeleteUser_MissingUserIsSkippedQuietly(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	log := &lockedBuffer{}
	s := e.service("", e.withQueue, logTo(log))
	wantDeletion(t, e.deletion(s, authorized(7)), skipped+"TARGET_GONE")
	wantDeletion(t, e.deletion(s, inactiveBot()), skipped+"TARGET_GONE")
	if strings.Contains(log.String(), "job finished") {
		t.Errorf("not quiet: %s", log)
	}
}

func TestDeleteUser_AccountsOfTheSystemStay(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	log := &lockedBuffer{}
	s := e.service("", e.withQueue, logTo(log))
	for userType := range 19 {
		user := 200 + userType
		e.user(user, userType, 1)
		want, rows := refused+"INTERNAL_USER", "active 0 0"
		switch userType {
		case 0, 6, 13, 15:
			want, rows = done, fmt.Sprintf("blocked 0 0 f,%d", userType)
		}
		wantDeletion(t, e.deletion(s, authorized(int64(user))), want)
		if got := e.userRows(user); got != rows {
			t.Errorf("type %d: %s, want %s", userType, got, rows)
		}
	}
	if n := strings.Count(log.String(), `"level":"WARN"`); n != 15 {
		t.Errorf("%d warnings, want 15", n)
	}
	if !strings.Contains(log.String(), `"outcome":"refused","reason":"INTERNAL_USER","attempt":1,"run_id":"","duration_seconds"`) || !strings.Contains(log.String(), `"user_id":205`) {
		t.Errorf("log: %s", log)
	}
	e.want("main", `SELECT count(*) FROM maintenance.river_job WHERE attempt > 1 OR state NOT IN ('completed', 'cancelled')`, "0")
}

func TestDeleteUser_ReasonOfTheTokensIsCheckedAgain(t *testing.T) {
	t.Parallel()
	set := func(value string) string {
		return `UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings(value) + `'`
	}
	for name, c := range map[string]struct{ sql, want string }{
		"a new token":                   {`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (7, 't', 1, now(), now())`, skipped + "TOKEN_ACTIVE"},
		"a token revoked lately":        {`UPDATE personal_access_tokens SET revoked = true, updated_at = now() AT TIME ZONE 'UTC'`, skipped + "TOKEN_ACTIVE"},
		"more days now":                 {set("500"), skipped + "TOKEN_ACTIVE"},
		"fewer days now":                {set("1"), done},
		"setting switched off":          {set("null"), skipped + "SETTING_OFF"},
		"setting invalid":               {set(`"42"`), failed + " SETTING_INVALID"},
		"setting absent, 30 days":       {`DELETE FROM application_settings`, done},
		"a human":                       {`UPDATE users SET user_type = 0 WHERE id = 7`, skipped + "NOT_A_BOT"},
		"a service account":             {`UPDATE users SET user_type = 13 WHERE id = 7`, skipped + "NOT_A_BOT"},
		"a ghost":                       {`UPDATE users SET user_type = 5 WHERE id = 7`, refused + "INTERNAL_USER"},
		"nothing has changed":           {`SELECT 1`, done},
		"a token of somebody else":      {`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (101, 't', 1, now(), now())`, done},
		"the dead token is gone":        {`DELETE FROM personal_access_tokens`, done},
		"expired on the last day now":   {`UPDATE personal_access_tokens SET expires_at = (now() AT TIME ZONE 'UTC' - interval '42 days')::date`, skipped + "TOKEN_ACTIVE"},
		"expired the day before, today": {`UPDATE personal_access_tokens SET expires_at = (now() AT TIME ZONE 'UTC' - interval '42 days')::date - 1`, done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.bots(7)
			e.group(50, 0)
			e.member(7, 30)
			e.token(7, "false", "{c_date} - 100", longAgo)
			s := e.service("", e.withQueue)
			wantCounts(t, runTokens(t, s), "examined_users=1 scheduled_jobs=1")
			e.exec("main", c.sql)
			before := e.value("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT coalesce(string_agg(t::text, ' '), '') FROM personal_access_tokens t) FROM users u`)
			got := e.deletionAgain(s)
			wantDeletion(t, got, c.want)
			if got != done {
				e.want("main", `SELECT string_agg(u::text, ' ' ORDER BY id) || (SELECT coalesce(string_agg(t::text, ' '), '') FROM personal_access_tokens t) FROM users u`, before)
				e.want("main", `SELECT (SELECT count(*) FROM members) || ' ' || (SELECT count(*) FROM ghost_user_migrations)`, "1 0")
			}
			if c.want == failed+" SETTING_INVALID" {
				e.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, tokenSettingKey+` in application_settings.resource_access_tokens_settings is "42":`+
					` set it to a whole number of days from 1 to 36500, or to null, which switches the deletion off`)
			}
		})
	}
}

func TestDeleteUser_OtherReasonsDoNotLookAtTokens(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(7)
	e.alive(7)
	e.exec("main", `UPDATE application_settings SET resource_access_tokens_settings = '`+tokenSettings("null")+`'`)
	wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), done)
}

func TestDeleteUser_ActorNeedsTheRightUnlessItIsSkipped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		actor *int64
		skip  bool
		want  string
	}{
		"active admin":                      {new(int64(1)), false, done},
		"blocked admin":                     {new(int64(2)), false, refused + "NOT_AUTHORIZED"},
		"normal user":                       {new(int64(3)), false, refused + "NOT_AUTHORIZED"},
		"admin without a state":             {new(int64(4)), false, refused + "NOT_AUTHORIZED"},
		"nobody of that id":                 {new(int64(999)), false, refused + "NOT_AUTHORIZED"},
		"nobody":                            {nil, false, refused + "NOT_AUTHORIZED"},
		"the user":                          {new(int64(7)), false, done},
		"skipped: normal user":              {new(int64(3)), true, done},
		"skipped: blocked admin":            {new(int64(2)), true, done},
		"skipped: nobody of that id":        {new(int64(999)), true, done},
		"skipped: nobody":                   {nil, true, done},
		"skipped: the user":                 {new(int64(7)), true, done},
		"skipped: admin bot, another group": {new(int64(102)), true, done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			for user := 1; user <= 4; user++ {
				e.user(user, 0, 1)
			}
			e.exec("main", `UPDATE users SET admin = id <> 3, state = CASE id WHEN 2 THEN 'blocked' WHEN 4 THEN NULL ELSE 'active' END WHERE id <= 4`)
			e.bots(7)
			got := e.deletion(e.service("", e.withQueue), repo.DeleteUser{UserID: 7, DeletedByID: c.actor, SkipAuthorization: c.skip, Reason: "because"})
			wantDeletion(t, got, c.want)
			rows := "active 0 0"
			if c.want == done {
				rows = "blocked 0 0 f,6"
				if c.actor != nil {
					rows = fmt.Sprintf("blocked 0 0 %d,f,6", *c.actor)
				}
			}
			if got := e.userRows(7); got != rows {
				t.Errorf("%s, want %s", got, rows)
			}
		})
	}
}

func TestDeleteUser_StateBecomesBlockedUnlessItIsBanned(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	s := e.service("", e.withQueue)
	for i, state := range []string{"'active'", "NULL", "'deactivated'", "'ldap_blocked'", "'blocked_pending_approval'", "'blocked'", "'banned'"} {
		user := 10 + i
		e.user(user, 0, 1)
		e.exec("main", fmt.Sprintf(`UPDATE users SET state = %s, updated_at = '2001-01-01' WHERE id = %d`, state, user))
		wantDeletion(t, e.deletion(s, authorized(int64(user))), done)
	}
	e.want("main", `SELECT string_agg(concat_ws(' ', id, state, updated_at > '2001-01-01', (SELECT count(*) FROM ghost_user_migrations WHERE user_id = u.id)), ', ' ORDER BY id) FROM users u WHERE id < 100`,
		"10 blocked t 1, 11 blocked t 1, 12 blocked t 1, 13 blocked t 1, 14 blocked t 1, 15 blocked f 1, 16 banned f 1")
}

func TestDeleteUser_UserWithoutATypeIsQueuedAsHuman(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.exec("main", `ALTER TABLE users DROP CONSTRAINT users_user_type_check; UPDATE users SET user_type = NULL`)
	wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), done)
	if got := e.userRows(7); got != "blocked 0 0 f,0" {
		t.Error(got)
	}
}
