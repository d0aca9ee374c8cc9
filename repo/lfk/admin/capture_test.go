package admin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestCapture_RecordsDeletedRowsAlone(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE top (id bigint PRIMARY KEY); INSERT INTO top VALUES (1), (2);
		CREATE TABLE p (id bigint PRIMARY KEY, top_id bigint REFERENCES top ON DELETE CASCADE); INSERT INTO p SELECT generate_series(0, 5);
		DELETE FROM p WHERE id = 0`)
	b.wantRecords()
	b.track("p", "")
	b.exec("DELETE FROM p WHERE id = 1")
	b.want(`SELECT (fully_qualified_table_name, primary_key_value, partition, status, cleanup_attempts, consume_after = created_at, id)
		FROM loose_foreign_keys_deleted_records`, "(public.p,1,1,1,0,t,1)")
	b.wantRecords("public.p:1")
	b.exec("DELETE FROM p WHERE id IN (2, 3, 4)")
	b.want("SELECT count(DISTINCT consume_after) FROM loose_foreign_keys_deleted_records", "1")
	b.wantRecords("public.p:2", "public.p:3", "public.p:4")
	b.exec("DELETE FROM p WHERE id = 99; UPDATE p SET top_id = 1")
	b.exec("BEGIN; DELETE FROM p WHERE id = 5; ROLLBACK")
	b.wantRecords()
	b.exec("DELETE FROM top WHERE id = 1")
	b.wantRecords("public.p:5")

	b.exec("CREATE TABLE q (number smallint UNIQUE, name text); INSERT INTO q VALUES (7, 'a'), (NULL, 'b'), (-3, 'c')")
	b.track("q", "number")
	b.exec("DELETE FROM q")
	b.wantRecords("public.q:-3", "public.q:7")
	b.exec(`CREATE TABLE r (number bigint PRIMARY KEY) PARTITION BY HASH (number);
		CREATE TABLE r0 PARTITION OF r FOR VALUES WITH (MODULUS 1, REMAINDER 0); INSERT INTO r VALUES (1), (2)`)
	b.track("r", "number")
	b.exec("DELETE FROM r WHERE number = 1; DELETE FROM r0")
	b.wantRecords("public.r:1", "public.r:2")
}

// partitioned makes a parent in three levels: p (a (a1, a2), b), the leaves in another schema.
func partitioned(t *testing.T) *bench {
	t.Helper()
	b := installed(t)
	b.exec(`CREATE SCHEMA leaves; CREATE TABLE p (id bigint, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
		CREATE TABLE a PARTITION OF p FOR VALUES IN (1, 2) PARTITION BY LIST (part);
		CREATE TABLE leaves.a1 PARTITION OF a FOR VALUES IN (1); CREATE TABLE leaves.a2 PARTITION OF a FOR VALUES IN (2);
		CREATE TABLE leaves.b PARTITION OF p FOR VALUES IN (3);
		INSERT INTO p SELECT n, n % 3 + 1 FROM generate_series(1, 30) n`)
	return b
}

func TestCapture_PartitionedParentRecordsEachRowOnceUnderItsName(t *testing.T) {
	b := partitioned(t)
	b.track("p", "")
	b.exec("DELETE FROM p WHERE id IN (1, 2, 3)")
	b.wantRecords("public.p:1", "public.p:2", "public.p:3")
	b.exec("DELETE FROM leaves.b WHERE id = 5")
	b.wantRecords("public.p:5")
	b.exec("DELETE FROM a WHERE id IN (4, 6)")
	b.wantRecords("public.p:4", "public.p:6")
	b.exec("DELETE FROM leaves.a1 WHERE id = 9")
	b.wantRecords("public.p:9")
	// A row that moves between leaves is not recorded.
	b.exec("UPDATE p SET part = 3 WHERE id = 12")
	b.want("SELECT count(*) FROM leaves.b WHERE id = 12", "1")
	b.wantRecords()
	if b.value("SELECT current_setting('server_version_num')::int < 150000") == "true" {
		return // PostgreSQL has MERGE since version 15.
	}
	b.exec("CREATE TABLE q (id bigint PRIMARY KEY); INSERT INTO q VALUES (6), (7)")
	b.track("q", "")
	b.exec("MERGE INTO p USING (VALUES (7), (8)) v (id) ON p.id = v.id WHEN MATCHED THEN DELETE")
	b.exec("MERGE INTO q USING (VALUES (6), (8)) v (id) ON q.id = v.id WHEN MATCHED THEN DELETE")
	b.wantRecords("public.p:7", "public.p:8", "public.q:6")
}

func TestCapture_NothingOfADeletionDependsOnTheSession(t *testing.T) {
	b := partitioned(t)
	b.exec(`CREATE TABLE q (number int PRIMARY KEY); CREATE TABLE plain (id int PRIMARY KEY);
		INSERT INTO q VALUES (1), (2), (3); INSERT INTO plain VALUES (1), (2), (3)`)
	b.track("p", "")
	b.track("q", "number")
	b.track("plain", "")
	// Objects that an attacker or an unlucky application might put in front: tables and operators of
	// the same names.
	b.exec(`CREATE SCHEMA decoy; CREATE TABLE decoy.loose_foreign_keys_deleted_records (LIKE loose_foreign_keys_deleted_records);
		CREATE TABLE decoy.old_table (id bigint, number bigint);
		CREATE FUNCTION decoy.fail(text, text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''decoy''; END';
		CREATE OPERATOR decoy.|| (FUNCTION = decoy.fail, LEFTARG = text, RIGHTARG = text)`)
	for i, path := range []string{"decoy, pg_catalog", "", "leaves"} {
		id := []string{"1", "2", "3"}[i]
		b.exec("SELECT set_config('search_path', '" + path + "', false)")
		b.exec("DELETE FROM public.p WHERE id = " + id + "; DELETE FROM public.q WHERE number = " + id + "; DELETE FROM public.plain WHERE id = " + id)
		b.exec("RESET search_path")
		b.wantRecords("public.p:"+id, "public.plain:"+id, "public.q:"+id)
	}
	b.exec("SET session_replication_role = replica")
	b.exec("DELETE FROM p WHERE id = 4; DELETE FROM leaves.a1 WHERE id = 9")
	b.exec("RESET session_replication_role")
	b.wantRecords("public.p:4", "public.p:9")
}

func TestCapture_ARoleWithoutRightsOnTheQueueMayDelete(t *testing.T) {
	b := partitioned(t)
	b.track("p", "")
	b.exec("SET ROLE " + b.estate.Role(`GRANT SELECT, DELETE ON p, leaves.b TO {role}; GRANT USAGE ON SCHEMA leaves TO {role}; REVOKE ALL ON SCHEMA maintenance FROM PUBLIC`))
	b.exec(aTrace + "; DELETE FROM public.p WHERE id = 1; DELETE FROM leaves.b WHERE id = 2")
	var allowed bool
	err := b.sql.QueryRow(context.Background(), `SELECT has_table_privilege('public.loose_foreign_keys_deleted_records', 'INSERT')`).Scan(&allowed)
	b.exec("RESET ROLE")
	assert.That(t, err == nil && !allowed, "the role may write to the queue itself: %v, %v", allowed, err)
	b.want(noted, "1:"+aParent+" 2:"+aParent)
	b.wantRecords("public.p:1", "public.p:2")
}

func TestCapture_NobodyElseCanMakeTriggersThatReportLiveRows(t *testing.T) {
	b := installed(t)
	b.exec("CREATE TABLE p (number int PRIMARY KEY)")
	b.track("p", "number")
	b.exec("SET ROLE " + b.estate.Role("GRANT CREATE ON SCHEMA public TO {role}") + "; CREATE TABLE mine (id int, number int)")
	for _, function := range []string{"", "_override_table", "_with_number"} {
		_, err := b.sql.Exec(context.Background(), `CREATE TRIGGER t`+function+` AFTER DELETE ON mine REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records`+function+`('p')`)
		assert.That(t, err != nil, "a trigger with the function %q was made without the right to", function)
	}
	b.exec("RESET ROLE")
}

func TestCapture_SchemaAndTableNamesAreLiteral(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	const schema = `we;ird "sc\he'ma $$ {queue}`
	b.exec("CREATE SCHEMA " + quoted(schema))
	b.exec("ALTER DATABASE " + quoted(b.value("current_database()")) + " SET search_path = " + quoted(schema))
	b.Admin, b.estate.SQL["main"] = admin.New(servicetest.Open(t, b.url).Database), servicetest.Connect(t, b.url)
	b.install("installed")
	names := []string{"Weird Table-1", "select", `a.b"c\'d`, "{table} $1 %s", "Ünïcödé", "n2345678901234567890123456789012345678901234_6"}
	for _, name := range names {
		b.exec("CREATE TABLE " + quoted(name) + ` (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)`)
		b.exec("CREATE TABLE " + quoted(name[:5]+" leaf") + " PARTITION OF " + quoted(name) + " DEFAULT")
		b.exec("INSERT INTO " + quoted(name) + " VALUES (1, 1), (2, 2)")
		b.track(catalog.Table{Name: name}.Written(), "")
		b.exec("DELETE FROM " + quoted(name) + " WHERE id = 1")
		b.exec("DELETE FROM " + quoted(name[:5]+" leaf"))
		b.wantRecords(schema+"."+name+":1", schema+"."+name+":2")
		b.track(catalog.Table{Name: name}.Written(), "")
		b.exec("CREATE TABLE " + quoted("plain "+name[:5]) + ` (";'\ x" int PRIMARY KEY); INSERT INTO ` + quoted("plain "+name[:5]) + " VALUES (7)")
		b.track(catalog.Table{Name: "plain " + name[:5]}.Written(), `;'\ x`)
		b.exec("DELETE FROM " + quoted("plain "+name[:5]))
		b.wantRecords(schema + ".plain " + name[:5] + ":7")
	}
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

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
	// Values that are no span are ignored.
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
	b.install(admin.QueueOurs)
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
	assert.That(t, err == nil && strings.Join(inspection.OldFunctions, " ") == "public."+prefix+" public."+prefix+"_override_table public."+prefix+"_with_k",
		"old are %v, %v", inspection.OldFunctions, err)
	b.install("managed by caretaker, trigger functions renewed")
	assert.Equal(t, b.dump(), fresh)
	b.exec(aTrace + "; DELETE FROM p WHERE id = 3")
	b.want(noted, "3:"+aParent)
	b.exec("UPDATE pg_proc SET prosrc = 'BEGIN INSERT INTO elsewhere VALUES (1); RETURN NULL; END' WHERE proname = $1", prefix+"_with_k")
	b.install(admin.QueueOurs)
	b.exec("UPDATE pg_proc SET prosrc = 'BEGIN RETURN NULL; END' WHERE proname = $1", prefix+"_with_k")
	b.install("managed by caretaker, trigger functions renewed")
}

// BenchmarkCapture deletes 10,000 rows of a tracked table one by one and 10,000 in one statement.
// It uses the trigger function without traces, today's without a span, and with a span.
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
			d := servicetest.Open(b, url)
			conn := servicetest.Connect(b, url)
			exec := func(sql string, args ...any) { assert.Must(conn.Exec(ctx, sql, args...))(b) }
			assert.Must(admin.New(d.Database).InstallQueue(ctx))(b)
			exec(`CREATE TABLE p (id bigint PRIMARY KEY)`)
			assert.Must(admin.New(d.Database).Track(ctx, "p", ""))(b)
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
