package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// clockSQL puts a clock that stands still in front of PostgreSQL's own, for connections whose search_path says so.
const clockSQL = `
CREATE TABLE public.clock (at timestamptz NOT NULL);
INSERT INTO public.clock VALUES ('2026-11-20 12:00:30Z');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM public.clock';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM public.clock';
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id)`

// byTheClock is a URL by which the clock of the test is seen, in a session whose time zone is Berlin's.
func byTheClock(url string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "search_path=public,pg_catalog&timezone=Europe/Berlin"
}

func withClock(schema string) devdb.Template {
	return devdb.Template{Name: "clock", Schema: schema, Version: clockSQL, Prepare: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, clockSQL)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
		d, err := repo.Open(ctx, "main", byTheClock(url))
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = scheduler.Migrate(ctx, d)
		return err
	}}
}

// clocked is an estate whose main has the time that the test says, and no worker's tables but those of
// loose_foreign_keys_cleanup.
type clocked struct{ *servicetest.Estate }

func newClocked(t *testing.T, others ...string) clocked {
	t.Helper()
	return newClockedWith(t, servicetest.Small, others...)
}

// newClockedWith is newClocked with another schema in main.
func newClockedWith(t *testing.T, schema string, others ...string) clocked {
	t.Helper()
	e := &servicetest.Estate{T: t, URLs: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	e.Add("main", byTheClock(servicetest.Databases.Clone(t, withClock(schema))))
	for _, name := range others {
		e.Add(name, servicetest.Databases.Clone(t, servicetest.Migrated(servicetest.Small)))
	}
	return clocked{e}
}

// at sets the clock of main: "11-20 12:00:00" of 2026, UTC.
func (c clocked) at(at string) {
	c.T.Helper()
	c.Exec("main", `UPDATE public.clock SET at = ('2026-' || $1 || 'Z')::timestamptz`, at)
}

// due lets a replica look at what is due, and waits for the runs.
func (c clocked) due(s *service.Service) {
	c.T.Helper()
	servicetest.NoError(c.T, s.RunDue(context.Background()))
	c.settled()
}

func (c clocked) settled() {
	c.T.Helper()
	c.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
}

// wantFires fails the test unless the ledger of the worker is this, one fire a line: month, day, time, outcome, code of
// the reason, and how late it ran.
func (c clocked) wantFires(want ...string) {
	c.T.Helper()
	got := c.Value("main", `SELECT coalesce(string_agg(concat_ws(' ', to_char(fire_time AT TIME ZONE 'UTC', 'MM-DD HH24:MI'), outcome, nullif(split_part(reason, ':', 1), ''),
		'+' || extract(epoch FROM started_at - fire_time)::int), E'\n' ORDER BY fire_time), '')
		FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`)
	if want := strings.Join(want, "\n"); got != want {
		c.T.Errorf("ledger:\n%s\nwant:\n%s", got, want)
	}
}

// wantRuns fails the test unless so many runs of the worker have worked.
func (c clocked) wantRuns(n int) {
	c.T.Helper()
	c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'succeeded' AND worker = '`+servicetest.LooseForeignKeys+`'`, fmt.Sprint(n))
	c.Want("main", `SELECT count(*) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id AND r.worker = f.worker
		WHERE f.outcome = 'ran' AND r.state = 'succeeded' AND f.started_at = r.started_at AND f.worker = '`+servicetest.LooseForeignKeys+`'`, fmt.Sprint(n))
}
