package token_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// keptDays is by how many days of 24 hours C lies before T in the newest pass.
const keptDays = `SELECT extract(epoch FROM started_at - cut_off) / 86400 FROM maintenance.token_passes ORDER BY started_at DESC LIMIT 1`

func TestInactiveTokenDeletion_SettingSaysHowManyDays(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	// Bots whose tokens expired 31 and 29 days ago.
	e.Bots(1, 2)
	e.Token(1, "false", "{today} - 31", servicetest.LongAgo)
	e.Token(2, "false", "{today} - 29", servicetest.LongAgo)
	set := func(json string) string {
		return `UPDATE application_settings SET resource_access_tokens_settings = '` + json + `'`
	}
	for _, c := range []struct{ name, sql, days, queued string }{
		{"a number", set(servicetest.TokenSettings("7")), "7", "1 2"},
		{"the least", set(servicetest.TokenSettings("1")), "1", "1 2"},
		{"the most", set(servicetest.TokenSettings("36500")), "36500", ""},
		{"a decimal point", set(servicetest.TokenSettings("30.000")), "30", "1"},
		{"an exponent", set(servicetest.TokenSettings("1e2")), "100", ""},
		{"a negative exponent", set(servicetest.TokenSettings("500e-1")), "50", ""},
		{"key given twice", set(`{"` + servicetest.TokenSettingKey + `": null, "` + servicetest.TokenSettingKey + `": 8}`), "8", "1 2"},
		{"key absent", set(`{"other": null}`), "30", "1"},
		{"key below another", set(`{"other": ` + servicetest.TokenSettings("null") + `}`), "30", "1"},
		{"row with the higher id", `INSERT INTO application_settings (id, resource_access_tokens_settings)
			VALUES (3, '` + servicetest.TokenSettings("9") + `'), (2, '` + servicetest.TokenSettings("null") + `')`, "9", "1 2"},
		{"no value", `ALTER TABLE application_settings ALTER resource_access_tokens_settings DROP NOT NULL; ` +
			`UPDATE application_settings SET resource_access_tokens_settings = NULL`, "30", "1"},
		{"no row", `DELETE FROM application_settings`, "30", "1"},
		{"no column", `ALTER TABLE application_settings DROP COLUMN resource_access_tokens_settings`, "30", "1"},
		{"no table", `DROP TABLE application_settings`, "30", "1"},
	} {
		e.Exec("main", `DELETE FROM maintenance.token_passes; DELETE FROM maintenance.river_job; `+c.sql)
		r := servicetest.RunTokens(t, s)
		servicetest.WantState(t, r, control.RunSucceeded)
		if days, queued := e.Value("main", `SELECT trim_scale((`+keptDays+`))`), e.Value("main", servicetest.QueuedUsers); days != c.days || queued != c.queued {
			t.Errorf("%s: %s days, users %q; want %s days, users %q", c.name, days, queued, c.days, c.queued)
		}
		e.Want("main", `SELECT p.started_at = r.started_at AND p.today = (r.started_at AT TIME ZONE 'UTC')::date
			FROM maintenance.token_passes p, maintenance.runs r WHERE r.id = '`+r.ID+`'`, "true")
	}
}

func TestInactiveTokenDeletion_NullSwitchesItOff(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("null"))
	e.Bots(1)
	e.Token(1, "true", "date '1980-01-01'", servicetest.LongAgo)
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today, cursor) VALUES (now(), now(), current_date, 5)`)
	// No user and no token is read, as the role cannot.
	e.Exec("main", `ALTER TABLE personal_access_tokens ENABLE ROW LEVEL SECURITY`)
	s := e.Service("", e.WithQueue)
	for _, dry := range []bool{true, false} {
		r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, DryRun: dry}))(t)
		servicetest.WantRun(t, r, control.RunSkipped, "")
		if r.Reason != "SETTING_OFF" || r.OverLimit || !strings.Contains(r.Error, servicetest.TokenSettingKey+" in application_settings.") {
			t.Errorf("%+v, want SETTING_OFF, and where", r)
		}
		if dry {
			e.Want("main", passes, "5/0/0")
		}
	}
	e.Want("main", passes, "")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens),
		"the last run was skipped: SETTING_OFF; "+servicetest.TokenSettingKey)
}

func TestInactiveTokenDeletion_InvalidSettingFailsTheRunAndKeepsThePass(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1)
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
		{`[30]`, `is [30]: set the column to a JSON object`},
		{`"` + servicetest.TokenSettingKey + `"`, `is "` + servicetest.TokenSettingKey + `": set the column to a JSON object`},
		{`30`, `is 30: set the column to a JSON object`},
		{`null`, `is null: set the column to a JSON object`},
	} {
		e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, c.settings)
		for _, dry := range []bool{false, true} {
			r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, DryRun: dry}))(t)
			servicetest.WantRun(t, r, control.RunFailed, "")
			if r.Reason != "SETTING_INVALID" || !strings.Contains(r.Error, servicetest.TokenSettingKey) || !strings.Contains(r.Error, c.named) {
				t.Errorf("%s: reason %q, error %q", c.settings, r.Reason, r.Error)
			}
		}
	}
	e.Want("main", servicetest.QueuedUsers, "")
	e.Want("main", passes, "0/0/0")
	servicetest.WantConditionOf(t, s, servicetest.InactiveTokens, status.ConditionFailing, servicetest.TokenSettingKey)
}

func TestInactiveTokenDeletion_PassKeepsItsCutOffWhenTheSettingChanges(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2)
	e.Token(1, "false", "{today} - 20", servicetest.LongAgo)
	e.Token(2, "false", "{today} - 20", servicetest.LongAgo)
	short := e.Service("", e.WithQueue, servicetest.OneBotARun)
	wantTokens(t, short, "examined_users=1")
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("7"))
	wantTokens(t, e.Service("", e.WithQueue), "examined_users=1")
	wantTokens(t, e.Service("", e.WithQueue), "examined_users=2 scheduled_jobs=2")
}
