package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	adminrepo "github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// everyWork is the work of the workers and jobs on an estate with main, ci and sec. It goes from
// the first claim to the last record of a deleted user.
func everyWork(m *servicetest.Mirrored) *service.Service {
	m.T.Helper()
	m.Candidates()
	s := m.Service(servicetest.OneBotARun, func(c *service.Config) {
		service.Settings[lfk.Config](c).Definitions = servicetest.Definitions(m.T, devdb.Definitions())
	})
	for worker, counts := range map[string]string{
		servicetest.InactiveTokens: "examined_users=1 scheduled_jobs=1", servicetest.PlaceholderUsers: "scheduled_jobs=3",
		servicetest.AdjournedGroups: "scheduled_jobs=3", servicetest.GhostUsers: "migrated_users=3 deleted_rows=12",
	} {
		r := assert.Must(s.RunBatch(m.T.Context(), run.Request{Worker: worker}))(m.T)
		servicetest.WantRun(m.T, r, control.RunSucceeded, counts)
	}
	for range 2 {
		assert.Equal(m.T, m.Work(s, "continue_inactive_token_deletion"), 1, "jobs continue_inactive_token_deletion")
		m.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	}
	for kind, n := range map[string]int{"delete_placeholder_user": 3, "destroy_group": 3} {
		assert.Equal(m.T, m.Work(s, kind), n, "jobs "+kind)
	}
	assert.Equal(m.T, m.Work(s, "delete_user"), 6, "jobs delete_user")
	m.Want("main", `SELECT string_agg(j::text, '; ') FROM maintenance.river_job j WHERE state <> 'completed'`, "NULL")
	m.Want("main", `SELECT count(*) FROM namespaces WHERE id BETWEEN 401 AND 403`, "0")
	m.Want("main", `SELECT count(*) FROM ghost_user_migrations`, "6")
	for _, database := range []string{"main", "ci", "sec"} {
		servicetest.WantState(m.T, servicetest.RunBatch(m.T, s, database), control.RunSucceeded)
	}
	m.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.users'`, "0")
	all := assert.Must(s.Status(m.T.Context(), ""))(m.T)
	for _, st := range all {
		assert.That(m.T, st.Condition == status.ConditionIdle, "%s: %s %s", st.Worker, st.Condition, st.ConditionDetail)
	}
	return s
}

// installAndClean migrates a bare main, installs the queue there, tracks a table, and cleans up
// after its deleted rows.
func installAndClean(e *servicetest.Estate) {
	e.T.Helper()
	d, ctx := e.Open[0], e.T.Context()
	for _, want := range []bool{true, false} {
		applied := assert.Must(scheduler.Migrate(ctx, d))(e.T)
		assert.Require(e.T, len(applied) > 0 == want, "%v", applied)
	}
	assert.NoError(e.T, errors.Join(d.CheckMigrated(ctx), scheduler.CheckQueueMigrated(ctx, d)))
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 5)`)
	e.Exec("main", `CREATE TABLE c (p_id bigint REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (p_id)`)
	e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 5); CREATE INDEX ON d (p_id)`)
	for _, want := range []string{adminrepo.QueueInstalled, adminrepo.QueueOurs} {
		got := assert.Must(adminrepo.New(d.Database).InstallQueue(ctx))(e.T)
		assert.Require(e.T, got == want, "%v", got)
	}
	assert.Must(adminrepo.New(d.Database).Track(ctx, "p", ""))(e.T)
	e.Exec("main", `DELETE FROM p WHERE id < 4`)
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n"
	r := servicetest.RunBatch(e.T, e.Service(definitions), "main")
	servicetest.WantRun(e.T, r, control.RunSucceeded, "processed_records=3 deleted_rows=3")
	lint := assert.Must(admin.Admin{Databases: e.Open, Definitions: servicetest.Definitions(e.T, definitions)}.Lint(ctx))(e.T)
	assert.That(e.T, len(lint.Findings) == 0, "%v", lint)
	_, err := adminrepo.New(d.Database).Untrack(ctx, "p")
	assert.That(e.T, err == nil, "%v", err)
}

// hostileSettings are settings that a database or a role may have, by what they may change.
func hostileSettings(pooled bool) map[string]string {
	all := map[string]string{
		"strings":   `standard_conforming_strings = off; backslash_quote = off; transform_null_equals = on; quote_all_identifiers = on`,
		"forms":     `DateStyle = 'SQL, DMY'; IntervalStyle = iso_8601; TimeZone = 'Asia/Kathmandu'; extra_float_digits = -15`,
		"isolation": `default_transaction_isolation = serializable; default_transaction_deferrable = on; synchronous_commit = off`,
		"snapshots": `default_transaction_isolation = 'repeatable read'; row_security = off`,
		"limits":    `lock_timeout = '1s'; statement_timeout = '3s'; idle_in_transaction_session_timeout = '1s'`,
	}
	if !pooled {
		// As text arrays and bytea depend on them, River's too.
		all["encodings"] = `array_nulls = off; bytea_output = escape`
	}
	return all
}

// hardened is an estate of clones with such settings, for all connections that are not open yet.
func hardened(t *testing.T, settings string, through bool, clones map[string]string) *servicetest.Estate {
	t.Helper()
	e := &servicetest.Estate{T: t, URLs: map[string]string{}, Through: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	if through {
		e, _ = servicetest.Pooled(t, 4, clones)
	}
	for _, name := range []string{"main", "ci", "sec"} {
		if clones[name] == "" {
			continue
		}
		if !through {
			e.Add(name, clones[name])
		}
		for setting := range strings.SplitSeq(settings, "; ") {
			e.Exec(name, `ALTER DATABASE `+servicetest.DatabaseOf(clones[name])+` SET `+setting)
		}
	}
	return e
}

func TestFault_Settings_OfADatabaseDoNotChangeWhatIsDone(t *testing.T) {
	t.Parallel()
	for _, through := range []bool{false, true} {
		for name, settings := range hostileSettings(through) {
			t.Run(fmt.Sprintf("%s, through a pooler %t", name, through), func(t *testing.T) {
				e := hardened(servicetest.Parallel(t), settings, through, map[string]string{
					"main": servicetest.Databases.Clone(t, servicetest.Migrated("main")), "ci": servicetest.Databases.Clone(t, servicetest.Migrated("ci")), "sec": servicetest.Databases.Clone(t, servicetest.Migrated("sec")),
				})
				s := everyWork(&servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}})
				leases := assert.Must(s.Leases(t.Context(), ""))(t)
				assert.That(t, len(leases) == 7, "%v", leases)
				lint := assert.Must(e.Keys(devdb.Definitions()).Lint(t.Context()))(t)
				assert.That(t, lint.Errors == 0, "%+v", lint)
				installAndClean(hardened(t, settings, through, map[string]string{"main": servicetest.Databases.Clone(t, devdb.Template{Name: "bare"})}))
			})
		}
	}
}

// setTimesSQL gives every set date and time of the application's tables and ours one value. It sets
// all of a column or, where a key forbids that, one. Leases have their own tests.
const setTimesSQL = `
DO $do$
DECLARE r record;
BEGIN
  FOR r IN
    SELECT format('%I.%I', n.nspname, c.relname) AS name, format('%1$I = CASE WHEN %1$I IS NOT NULL THEN %2$L::', a.attname, '{value}')
      || format_type(a.atttypid, -1) || ' END' AS change
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE n.nspname IN ('public', 'maintenance') AND c.relname <> 'leases' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND a.attnum > 0 AND a.atttypid IN ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)
  LOOP
    BEGIN
      EXECUTE 'UPDATE ' || r.name || ' SET ' || r.change;
    EXCEPTION WHEN unique_violation THEN
      EXECUTE 'UPDATE ' || r.name || ' SET ' || r.change || ' WHERE ctid = (SELECT min(ctid) FROM ' || r.name || ')';
    END;
  END LOOP;
END $do$`

func TestService_NoDateOrTimeOfAnybodyFailsARunAJobAStatusOrAList(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"infinity", "-infinity", "12026-01-02", "0044-03-15 BC"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			log := &servicetest.Buffer{}
			m := &servicetest.Mirrored{Estate: servicetest.New(t, "all", "main"), Log: log}
			m.Candidates()
			g := &servicetest.Groups{Estate: m.Estate}
			g.Service = g.Estate.Service(devdb.Definitions(), g.WithQueue, servicetest.LogTo(log))
			set := func() { g.Exec("main", strings.ReplaceAll(setTimesSQL, "{value}", value)) }
			for _, dry := range []bool{true, false} {
				set()
				runAll(g, dry)
			}
			for _, kind := range []string{"delete_placeholder_user", "delete_user", "destroy_group"} {
				g.Work(g.Service, kind)
				set()
			}
			g.Want("main", `SELECT coalesce(string_agg(errors::text, ' '), '') FROM maintenance.river_job`, "")
			g.Exec("main", timedRecordsSQL)
			set()
			wantStatus(g)
			wantLists(g)
			assert.That(t, !strings.Contains(log.String(), `"level":"ERROR"`), "%v", log)
		})
	}
}

// timedRecordsSQL are rows of tables that nothing in the test fills.
const timedRecordsSQL = `
INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', 'r', 'b');
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.users', 1);
INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
VALUES (1, 'public.users', 1, 'd', '23503', 'm', 10, now());
INSERT INTO maintenance.record_failures (partition, record_id, last_definition, sqlstate, setbacks)
SELECT partition, id, 'd', '23503', 1 FROM loose_foreign_keys_deleted_records LIMIT 1;
INSERT INTO maintenance.fires (worker, fire_time, outcome, claimed_by) VALUES ('ghost_user_migration', now(), 'missed', '');
INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES ('ghost_user_migration', '*/2 * * * *', now())`

// runAll runs every worker.
func runAll(g *servicetest.Groups, dry bool) {
	g.T.Helper()
	for _, worker := range []string{servicetest.LooseForeignKeys, servicetest.InactiveTokens, servicetest.GhostUsers, servicetest.AdjournedGroups, servicetest.PlaceholderUsers} {
		r := run.Request{Worker: worker, DryRun: dry}
		if worker == servicetest.LooseForeignKeys {
			r.Database = "main"
		}
		run := assert.Must(g.Service.RunBatch(context.Background(), r))(g.T)
		servicetest.WantState(g.T, run, control.RunSucceeded)
	}
}

// wantStatus fails the test unless status and gauges are read as they are.
func wantStatus(g *servicetest.Groups) {
	g.T.Helper()
	ctx, s := context.Background(), g.Estate.Service(devdb.Definitions(), g.WithQueue)
	all := assert.Must(s.Status(ctx, ""))(g.T)
	for _, w := range all {
		assert.That(g.T, !strings.Contains(w.ConditionDetail, "not known") && !strings.Contains(w.ConditionDetail, "not read"),
			"%s: %s", w.Worker, w.ConditionDetail)
	}
	d := g.Open[0]
	names := []string{servicetest.LooseForeignKeys, servicetest.GhostUsers}
	figures := assert.Must(d.History.WorkerFigures(ctx, names))(g.T)
	for _, f := range figures {
		assert.That(g.T, f.Paused >= 0, "paused for %s", f.Paused)
	}
	runs := assert.Must(d.History.RunFigures(ctx, names, []string{"main", ""}))(g.T)
	for _, f := range runs {
		assert.That(g.T, f.Running >= 0 && f.Failing >= 0, "at work for %s, failing for %s", f.Running, f.Failing)
	}
	counts := assert.Must(s.JobCounts(ctx))(g.T)
	for _, c := range counts {
		assert.That(g.T, c.Overdue >= 0, "%s overdue for %s", c.Kind, c.Overdue)
	}
}

func wantLists(g *servicetest.Groups) {
	g.T.Helper()
	ctx, keys, dead := context.Background(), g.Keys(devdb.Definitions()), 0
	assert.NoError(g.T, keys.Dead(ctx, "", func(r admin.DeadRecord) error {
		dead++
		_, err := json.Marshal(r)
		return err
	}))
	for what, n := range map[string]int{
		"runs":            len(assert.Must(g.Service.Runs(ctx, run.Filter{Limit: 1000}))(g.T)),
		"jobs":            len(assert.Must(g.Service.Jobs(ctx, job.Filter{Limit: 1000}))(g.T)),
		"fires":           len(assert.Must(g.Service.Fires(ctx, schedule.Filter{Limit: 1000}))(g.T)),
		"failing records": len(assert.Must(keys.Failing(ctx, ""))(g.T)),
		"dead records":    dead,
	} {
		assert.That(g.T, n != 0, "no %s are listed", what)
	}
	assert.Must(g.Service.BacklogSamples(ctx))(g.T)
}
