package service_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

const tokenSettingKey = "inactive_resource_access_tokens_delete_after_days"

// keptDays is by how many days of 24 hours C lies before T in the newest pass.
const keptDays = `SELECT extract(epoch FROM started_at - cut_off) / 86400 FROM maintenance.token_passes ORDER BY started_at DESC LIMIT 1`

func TestInactiveTokenDeletion_SettingSaysHowManyDays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, days string }{
		"a number":               {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("7") + `'`, "7"},
		"the least":              {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("1") + `'`, "1"},
		"the most":               {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("36500") + `'`, "36500"},
		"a decimal point":        {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("30.000") + `'`, "30"},
		"an exponent":            {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("1e2") + `'`, "100"},
		"a negative exponent":    {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("500e-1") + `'`, "50"},
		"key given twice":        {`UPDATE application_settings SET resource_access_tokens_settings = '{"` + tokenSettingKey + `": null, "` + tokenSettingKey + `": 8}'`, "8"},
		"key absent":             {`UPDATE application_settings SET resource_access_tokens_settings = '{"other": null}'`, "30"},
		"key below another":      {`UPDATE application_settings SET resource_access_tokens_settings = '{"other": ` + tokenSettings("null") + `}'`, "30"},
		"no row":                 {`DELETE FROM application_settings`, "30"},
		"no value":               {`ALTER TABLE application_settings ALTER resource_access_tokens_settings DROP NOT NULL; UPDATE application_settings SET resource_access_tokens_settings = NULL`, "30"},
		"no column":              {`ALTER TABLE application_settings DROP COLUMN resource_access_tokens_settings`, "30"},
		"no table":               {`DROP TABLE application_settings`, "30"},
		"row with the higher id": {`INSERT INTO application_settings (id, resource_access_tokens_settings) VALUES (3, '` + tokenSettings("9") + `'), (2, '` + tokenSettings("null") + `')`, "9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.exec("main", `DO $do$ BEGIN `+c.sql+`; END $do$`)
			r := runTokens(t, e.service("", e.withQueue))
			wantState(t, r, repo.RunSucceeded)
			e.want("main", `SELECT trim_scale((`+keptDays+`))`, c.days)
			e.want("main", `SELECT p.started_at = r.started_at AND p.today = (r.started_at AT TIME ZONE 'UTC')::date FROM maintenance.token_passes p, maintenance.runs r`, "true")
		})
	}
}

func TestInactiveTokenDeletion_AbsentSettingMeansThirtyDays(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"key absent": `UPDATE application_settings SET resource_access_tokens_settings = '{}'`,
		"no row":     `DELETE FROM application_settings`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.exec("main", sql)
			e.bots(1, 2)
			e.token(1, "false", "{today} - 31", longAgo)
			e.token(2, "false", "{today} - 29", longAgo)
			wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=2 scheduled_jobs=1")
			e.want("main", queuedUsers, "1")
		})
	}
}

func TestInactiveTokenDeletion_NullSwitchesItOff(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, tokenSettings("null"))
	e.bots(1)
	e.token(1, "true", "date '1980-01-01'", longAgo)
	e.exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today, cursor) VALUES (now(), now(), current_date, 5)`)
	// No user and no token is read: nobody may.
	e.exec("main", `ALTER TABLE personal_access_tokens ENABLE ROW LEVEL SECURITY`)
	s := e.service("", e.withQueue)
	for _, dry := range []bool{true, false} {
		r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, r, repo.RunSkipped)
		wantCounts(t, r, "")
		if r.Reason != "SETTING_OFF" || r.OverLimit || !strings.Contains(r.Error, tokenSettingKey+" in application_settings.") {
			t.Errorf("%+v, want SETTING_OFF, and where", r)
		}
		if dry {
			e.want("main", passes, "5/0/0")
		}
	}
	e.want("main", passes, "")
	e.want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	st, err := s.Status(context.Background(), tokenWorker)
	if err != nil || !strings.Contains(st[0].ConditionDetail, "the last run was skipped: SETTING_OFF "+tokenSettingKey) {
		t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
	}
}

func TestInactiveTokenDeletion_InvalidSettingFailsTheRunAndKeepsThePass(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1)
	e.exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), current_date)`)
	s := e.service("", e.withQueue)
	huge := "1" + strings.Repeat("0", 400)
	for _, c := range []struct{ settings, named string }{
		{tokenSettings("0"), "is 0:"},
		{tokenSettings("-0"), "is 0:"},
		{tokenSettings("-1"), "is -1:"},
		{tokenSettings("30.5"), "is 30.5:"},
		{tokenSettings("1e-3"), "is 0.001:"},
		{tokenSettings("36501"), "is 36501:"},
		{tokenSettings("1e400"), "is " + huge[:200] + ":"},
		{tokenSettings("9223372036854775808"), "is 9223372036854775808:"},
		{tokenSettings("true"), "is true:"},
		{tokenSettings("false"), "is false:"},
		{tokenSettings(`"30"`), `is "30":`},
		{tokenSettings(`""`), `is "":`},
		{tokenSettings(`{"days": 30}`), `is {"days": 30}:`},
		{tokenSettings(`[30]`), `is [30]:`},
		{tokenSettings(`{}`), `is {}:`},
		{`[30]`, `is [30], which is no object`},
		{`"` + tokenSettingKey + `"`, `is "` + tokenSettingKey + `", which is no object`},
		{`30`, `is 30, which is no object`},
		{`null`, `is null, which is no object`},
	} {
		e.exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, c.settings)
		for _, dry := range []bool{false, true} {
			r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, r, repo.RunFailed)
			wantCounts(t, r, "")
			if r.Reason != "SETTING_INVALID" || !strings.Contains(r.Error, tokenSettingKey) || !strings.Contains(r.Error, c.named) {
				t.Errorf("%s: reason %q, error %q", c.settings, r.Reason, r.Error)
			}
		}
	}
	e.want("main", queuedUsers, "")
	e.want("main", passes, "0/0/0")
	st, err := s.Status(context.Background(), tokenWorker)
	if err != nil || st[0].Condition != service.ConditionFailing || !strings.Contains(st[0].ConditionDetail, tokenSettingKey) {
		t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
	}
}

func TestInactiveTokenDeletion_PassKeepsItsCutOffWhenTheSettingChanges(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2)
	e.token(1, "false", "{today} - 20", longAgo)
	e.token(2, "false", "{today} - 20", longAgo)
	short := e.service("", e.withQueue, oneBotARun)
	wantCounts(t, runTokens(t, short), "examined_users=1")
	e.exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, tokenSettings("7"))
	wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=1")
	wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=2 scheduled_jobs=2")
}
