package inactivetoken_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// keptDays is by how many days of 24 hours C lies before T in the newest pass.
const keptDays = `SELECT extract(epoch FROM started_at - cut_off) / 86400 FROM maintenance.token_passes ORDER BY started_at DESC LIMIT 1`

func TestInactiveTokenDeletion_SettingSaysHowManyDays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, days string }{
		"a number":               {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("7") + `'`, "7"},
		"the least":              {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("1") + `'`, "1"},
		"the most":               {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("36500") + `'`, "36500"},
		"a decimal point":        {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("30.000") + `'`, "30"},
		"an exponent":            {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("1e2") + `'`, "100"},
		"a negative exponent":    {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("500e-1") + `'`, "50"},
		"key given twice":        {`UPDATE application_settings SET resource_access_tokens_settings = '{"` + servicetest.TokenSettingKey + `": null, "` + servicetest.TokenSettingKey + `": 8}'`, "8"},
		"key absent":             {`UPDATE application_settings SET resource_access_tokens_settings = '{"other": null}'`, "30"},
		"key below another":      {`UPDATE application_settings SET resource_access_tokens_settings = '{"other": ` + servicetest.TokenSettings("null") + `}'`, "30"},
		"no row":                 {`DELETE FROM application_settings`, "30"},
		"no value":               {`ALTER TABLE application_settings ALTER resource_access_tokens_settings DROP NOT NULL; UPDATE application_settings SET resource_access_tokens_settings = NULL`, "30"},
		"no column":              {`ALTER TABLE application_settings DROP COLUMN resource_access_tokens_settings`, "30"},
		"no table":               {`DROP TABLE application_settings`, "30"},
		"row with the higher id": {`INSERT INTO application_settings (id, resource_access_tokens_settings) VALUES (3, '` + servicetest.TokenSettings("9") + `'), (2, '` + servicetest.TokenSettings("null") + `')`, "9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewTokens(t)
			e.Exec("main", `DO $do$ BEGIN `+c.sql+`; END $do$`)
			r := servicetest.RunTokens(t, e.Service("", e.WithQueue))
			servicetest.WantState(t, r, repo.RunSucceeded)
			e.Want("main", `SELECT trim_scale((`+keptDays+`))`, c.days)
			e.Want("main", `SELECT p.started_at = r.started_at AND p.today = (r.started_at AT TIME ZONE 'UTC')::date FROM maintenance.token_passes p, maintenance.runs r`, "true")
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
			e := servicetest.NewTokens(t)
			e.Exec("main", sql)
			e.Bots(1, 2)
			e.Token(1, "false", "{today} - 31", servicetest.LongAgo)
			e.Token(2, "false", "{today} - 29", servicetest.LongAgo)
			servicetest.WantCounts(t, servicetest.RunTokens(t, e.Service("", e.WithQueue)), "examined_users=2 scheduled_jobs=1")
			e.Want("main", servicetest.QueuedUsers, "1")
		})
	}
}

func TestInactiveTokenDeletion_NullSwitchesItOff(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("null"))
	e.Bots(1)
	e.Token(1, "true", "date '1980-01-01'", servicetest.LongAgo)
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today, cursor) VALUES (now(), now(), current_date, 5)`)
	// No user and no token is read: nobody may.
	e.Exec("main", `ALTER TABLE personal_access_tokens ENABLE ROW LEVEL SECURITY`)
	s := e.Service("", e.WithQueue)
	for _, dry := range []bool{true, false} {
		r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens, DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		servicetest.WantState(t, r, repo.RunSkipped)
		servicetest.WantCounts(t, r, "")
		if r.Reason != "SETTING_OFF" || r.OverLimit || !strings.Contains(r.Error, servicetest.TokenSettingKey+" in application_settings.") {
			t.Errorf("%+v, want SETTING_OFF, and where", r)
		}
		if dry {
			e.Want("main", passes, "5/0/0")
		}
	}
	e.Want("main", passes, "")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	st, err := s.Status(context.Background(), servicetest.InactiveTokens)
	if err != nil || !strings.Contains(st[0].ConditionDetail, "the last run was skipped: SETTING_OFF "+servicetest.TokenSettingKey) {
		t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
	}
}

func TestInactiveTokenDeletion_InvalidSettingFailsTheRunAndKeepsThePass(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Bots(1)
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), current_date)`)
	s := e.Service("", e.WithQueue)
	huge := "1" + strings.Repeat("0", 400)
	for _, c := range []struct{ settings, named string }{
		{servicetest.TokenSettings("0"), "is 0:"},
		{servicetest.TokenSettings("-0"), "is 0:"},
		{servicetest.TokenSettings("-1"), "is -1:"},
		{servicetest.TokenSettings("30.5"), "is 30.5:"},
		{servicetest.TokenSettings("1e-3"), "is 0.001:"},
		{servicetest.TokenSettings("36501"), "is 36501:"},
		{servicetest.TokenSettings("1e400"), "is " + huge[:200] + ":"},
		{servicetest.TokenSettings("9223372036854775808"), "is 9223372036854775808:"},
		{servicetest.TokenSettings("true"), "is true:"},
		{servicetest.TokenSettings("false"), "is false:"},
		{servicetest.TokenSettings(`"30"`), `is "30":`},
		{servicetest.TokenSettings(`""`), `is "":`},
		{servicetest.TokenSettings(`{"days": 30}`), `is {"days": 30}:`},
		{servicetest.TokenSettings(`[30]`), `is [30]:`},
		{servicetest.TokenSettings(`{}`), `is {}:`},
		{`[30]`, `is [30], which is no object`},
		{`"` + servicetest.TokenSettingKey + `"`, `is "` + servicetest.TokenSettingKey + `", which is no object`},
		{`30`, `is 30, which is no object`},
		{`null`, `is null, which is no object`},
	} {
		e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, c.settings)
		for _, dry := range []bool{false, true} {
			r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens, DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			servicetest.WantState(t, r, repo.RunFailed)
			servicetest.WantCounts(t, r, "")
			if r.Reason != "SETTING_INVALID" || !strings.Contains(r.Error, servicetest.TokenSettingKey) || !strings.Contains(r.Error, c.named) {
				t.Errorf("%s: reason %q, error %q", c.settings, r.Reason, r.Error)
			}
		}
	}
	e.Want("main", servicetest.QueuedUsers, "")
	e.Want("main", passes, "0/0/0")
	st, err := s.Status(context.Background(), servicetest.InactiveTokens)
	if err != nil || st[0].Condition != service.ConditionFailing || !strings.Contains(st[0].ConditionDetail, servicetest.TokenSettingKey) {
		t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
	}
}

func TestInactiveTokenDeletion_PassKeepsItsCutOffWhenTheSettingChanges(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Bots(1, 2)
	e.Token(1, "false", "{today} - 20", servicetest.LongAgo)
	e.Token(2, "false", "{today} - 20", servicetest.LongAgo)
	short := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.WantCounts(t, servicetest.RunTokens(t, short), "examined_users=1")
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("7"))
	servicetest.WantCounts(t, servicetest.RunTokens(t, e.Service("", e.WithQueue)), "examined_users=1")
	servicetest.WantCounts(t, servicetest.RunTokens(t, e.Service("", e.WithQueue)), "examined_users=2 scheduled_jobs=2")
}
