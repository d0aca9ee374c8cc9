package lfkadmin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	aParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	aTrace  = `SELECT set_config('caretaker.traceparent', '` + aParent + `', false)`
	noted   = `SELECT coalesce(string_agg(concat_ws(':', q.primary_key_value, t.traceparent), ' ' ORDER BY q.id), '-')
		FROM maintenance.record_traces t LEFT JOIN loose_foreign_keys_deleted_records q ON q.partition = t.partition AND q.id = t.record_id`
)

func TestCapture_KeepsTheSpanThatTheSessionHasSet(t *testing.T) {
	b := installed(t)
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 5012)")
	b.track("p", "")
	b.exec("DELETE FROM p WHERE id = 1")
	b.want(noted, "-")
	b.exec("BEGIN; SET LOCAL caretaker.traceparent = '" + aParent + "'; DELETE FROM p WHERE id IN (2, 3); COMMIT; DELETE FROM p WHERE id = 4")
	b.want(noted, "2:"+aParent+" 3:"+aParent)
	b.exec(aTrace)
	b.exec("BEGIN; DELETE FROM p WHERE id = 5; ROLLBACK; DELETE FROM p WHERE id = 9999")
	b.want(noted, "2:"+aParent+" 3:"+aParent)
	b.exec("DELETE FROM p WHERE id = 5; RESET caretaker.traceparent; DELETE FROM p WHERE id = 6")
	b.want(noted, "2:"+aParent+" 3:"+aParent+" 5:"+aParent)
	b.wantRecords("public.p:1", "public.p:2", "public.p:3", "public.p:4", "public.p:5", "public.p:6")
	// What is no span is ignored.
	b.exec("TRUNCATE maintenance.record_traces")
	for i, parent := range []string{"", "x", aParent + "\n", strings.ToUpper(aParent), aParent + "0", "'; DROP TABLE p; --"} {
		b.exec("SELECT set_config('caretaker.traceparent', $1, false)", parent)
		b.exec("DELETE FROM p WHERE id = $1", i+7)
	}
	b.want(noted, "-")
	b.want("SELECT count(*) FROM loose_foreign_keys_deleted_records", "6")
	// The first rows of a huge statement have it.
	b.exec(aTrace)
	b.exec("DELETE FROM p")
	b.want("SELECT count(*) FROM maintenance.record_traces", "1000")
	b.want("SELECT count(*) FROM loose_foreign_keys_deleted_records", "5006")
}

// oldBody is that of the functions before there were traces.
const oldBody = `
BEGIN
  INSERT INTO "public"."loose_foreign_keys_deleted_records" (fully_qualified_table_name, primary_key_value)
  SELECT %s, old_table.%s FROM old_table WHERE old_table.%s IS NOT NULL;
  RETURN NULL;
END
`

func TestInstallQueue_RenewsFunctionsOfAnOlderVersionAndNoOthers(t *testing.T) {
	b := installed(t)
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY, k bigint UNIQUE); INSERT INTO p SELECT n, n FROM generate_series(1, 9) n")
	b.track("p", "k")
	b.install(lfkadmin.QueueOurs)
	fresh := b.dump()
	const prefix = "insert_into_loose_foreign_keys_deleted_records"
	old := func(name, recorded, column string) {
		body := strings.NewReplacer("%s, ", recorded+", ", "%s", `"`+column+`"`).Replace(oldBody)
		b.exec("UPDATE pg_proc SET prosrc = $2 WHERE proname = $1", prefix+name, body)
	}
	old("", "TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME", "id")
	old("_override_table", "'public' || '.' || TG_ARGV[0]", "id")
	old("_with_k", "'public' || '.' || TG_ARGV[0]", "k")
	inspection, err := b.Inspect(context.Background(), nil)
	assert.That(t, err == nil && strings.Join(inspection.OldFunctions, " ") == prefix+" "+prefix+"_override_table "+prefix+"_with_k",
		"old are %v, %v", inspection.OldFunctions, err)
	b.install("managed by caretaker, trigger functions renewed")
	got := b.dump()
	assert.That(t, got == fresh, "got %s, want %s", got, fresh)
	b.exec(aTrace + "; DELETE FROM p WHERE id = 3")
	b.want(noted, "3:"+aParent)
	b.exec("UPDATE pg_proc SET prosrc = 'BEGIN INSERT INTO elsewhere VALUES (1); RETURN NULL; END' WHERE proname = $1", prefix+"_with_k")
	b.install(lfkadmin.QueueOurs)
	b.exec("UPDATE pg_proc SET prosrc = 'BEGIN RETURN NULL; END' WHERE proname = $1", prefix+"_with_k")
	b.install("managed by caretaker, trigger functions renewed")
}

// BenchmarkCapture deletes 10,000 rows of a tracked table one by one and 10,000 in one statement: with the trigger
// function as it was before there were traces, with today's and no span set, and with a span.
func BenchmarkCapture(b *testing.B) {
	before := strings.NewReplacer("%s, ", "TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, ", "%s", `"id"`).Replace(oldBody)
	for _, c := range []struct {
		name, prepare string
		args          []any
	}{
		{"before traces", `UPDATE pg_proc SET prosrc = $1 WHERE proname = 'insert_into_loose_foreign_keys_deleted_records'`, []any{before}},
		{"no span", `SELECT`, nil},
		{"span", aTrace, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx := context.Background()
			url := servicetest.Databases.Clone(b, servicetest.Migrated(""))
			d := assert.Must(repo.Open(ctx, "main", url))(b)
			b.Cleanup(d.Close)
			conn := assert.Must(pgx.Connect(ctx, url))(b)
			b.Cleanup(func() { _ = conn.Close(ctx) })
			exec := func(sql string, args ...any) { assert.Must(conn.Exec(ctx, sql, args...))(b) }
			assert.Must(lfkadmin.New(d).InstallQueue(ctx))(b)
			exec(`CREATE TABLE p (id bigint PRIMARY KEY)`)
			assert.Must(lfkadmin.New(d).Track(ctx, "p", ""))(b)
			exec(c.prepare, c.args...)
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
