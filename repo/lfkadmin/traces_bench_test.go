package lfkadmin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// BenchmarkCapture deletes 10,000 rows of a tracked table one by one and 10,000 in one statement: with the trigger
// function as it was before there were traces, with today's and no span set, and with a span.
func BenchmarkCapture(b *testing.B) {
	for _, c := range []struct{ name, prepare string }{
		{"before traces", strings.NewReplacer("%s, ", "TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, ", "%s", `"id"`).Replace(oldBody)},
		{"no span", ""},
		{"span", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx := context.Background()
			url := databases.Clone(b, servicetest.Migrated(""))
			d := servicetest.Must(repo.Open(ctx, "main", url))(b)
			b.Cleanup(d.Close)
			conn := servicetest.Must(pgx.Connect(ctx, url))(b)
			b.Cleanup(func() { _ = conn.Close(ctx) })
			exec := func(sql string, args ...any) {
				if _, err := conn.Exec(ctx, sql, args...); err != nil {
					b.Fatalf("%s: %v", sql, err)
				}
			}
			admin := lfkadmin.New(d)
			servicetest.Must(admin.InstallQueue(ctx))(b)
			exec(`CREATE TABLE p (id bigint PRIMARY KEY)`)
			servicetest.Must(admin.Track(ctx, "p", ""))(b)
			if c.prepare != "" {
				exec(`UPDATE pg_proc SET prosrc = $1 WHERE proname = 'insert_into_loose_foreign_keys_deleted_records'`, c.prepare)
			}
			if c.name == "span" {
				exec(aTrace)
			}
			for b.Loop() {
				b.StopTimer()
				exec(`TRUNCATE p, loose_foreign_keys_deleted_records, maintenance.record_traces; INSERT INTO p SELECT generate_series(1, 20000)`)
				b.StartTimer()
				exec(`DO 'BEGIN FOR i IN 1..10000 LOOP DELETE FROM p WHERE id = i; END LOOP; END'`)
				exec(`DELETE FROM p`)
			}
		})
	}
}
