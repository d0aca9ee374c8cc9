package service_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// setTimesSQL gives every date and time that is set, of the application's tables and ours, one value: all of a column, or
// where a key forbids that one. Leases have their own tests.
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
			check(t, !strings.Contains(log.String(), `"level":"ERROR"`), "%v", log)
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
		r := service.RunRequest{Worker: worker, DryRun: dry}
		if worker == servicetest.LooseForeignKeys {
			r.Database = "main"
		}
		run := servicetest.Must(g.Service.RunBatch(context.Background(), r))(g.T)
		servicetest.WantState(g.T, run, repo.RunSucceeded)
	}
}

// wantStatus fails the test unless status and gauges are read as they are.
func wantStatus(g *servicetest.Groups) {
	g.T.Helper()
	ctx, s := context.Background(), g.Estate.Service(devdb.Definitions(), g.WithQueue)
	all := servicetest.Must(s.Status(ctx, ""))(g.T)
	for _, w := range all {
		check(g.T, !strings.Contains(w.ConditionDetail, "not known") && !strings.Contains(w.ConditionDetail, "not read"),
			"%s: %s", w.Worker, w.ConditionDetail)
	}
	d := g.Open[0]
	names := []string{servicetest.LooseForeignKeys, servicetest.GhostUsers}
	figures := servicetest.Must(d.WorkerFigures(ctx, names))(g.T)
	for _, f := range figures {
		check(g.T, f.Paused >= 0, "paused for %s", f.Paused)
	}
	runs := servicetest.Must(d.RunFigures(ctx, names, []string{"main", ""}))(g.T)
	for _, f := range runs {
		check(g.T, f.AtWork >= 0 && f.Failing >= 0, "at work for %s, failing for %s", f.AtWork, f.Failing)
	}
	counts := servicetest.Must(s.JobCounts(ctx))(g.T)
	for _, c := range counts {
		check(g.T, c.Overdue >= 0, "%s overdue for %s", c.Kind, c.Overdue)
	}
}

func wantLists(g *servicetest.Groups) {
	g.T.Helper()
	ctx, keys, dead := context.Background(), g.Keys(devdb.Definitions()), 0
	servicetest.NoError(g.T, keys.Dead(ctx, "", func(r loosefk.DeadRecord) error {
		dead++
		_, err := json.Marshal(r)
		return err
	}))
	for what, n := range map[string]int{
		"runs":            len(servicetest.Must(g.Service.Runs(ctx, service.RunFilter{Limit: 1000}))(g.T)),
		"jobs":            len(servicetest.Must(g.Service.Jobs(ctx, service.JobFilter{Limit: 1000}))(g.T)),
		"fires":           len(servicetest.Must(g.Service.Fires(ctx, service.FireFilter{Limit: 1000}))(g.T)),
		"failing records": len(servicetest.Must(keys.Failing(ctx, ""))(g.T)),
		"dead records":    dead,
	} {
		check(g.T, n != 0, "no %s are listed", what)
	}
	servicetest.Must(g.Service.BacklogSamples(ctx))(g.T)
}
