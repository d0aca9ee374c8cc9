package repo_test

import (
	"regexp"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

func TestSummary_SaysWhatIsDoneToWhichTable(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`DELETE FROM "public"."ci_builds" t WHERE t.id = $1`:                                                                        "DELETE ci_builds",
		`WITH fence AS MATERIALIZED (SELECT 1 FROM maintenance.leases FOR SHARE) UPDATE ONLY public.issues SET x = 'DELETE FROM y'`: "UPDATE issues",
		`WITH a AS (DELETE FROM b RETURNING id), c AS (INSERT INTO maintenance.d SELECT id FROM a) SELECT count(*) FROM a`:          "DELETE b",
		`INSERT INTO maintenance.leases (name) VALUES ('x') ON CONFLICT (name) DO UPDATE SET name = 'y'`:                            "INSERT maintenance.leases",
		`SELECT id FROM users WHERE a IS DISTINCT FROM b FOR NO KEY UPDATE`:                                                         "SELECT users",
		`SELECT k FROM unnest($1::bigint[]) AS k (key) CROSS JOIN LATERAL (SELECT FROM "Odd ""name" t) c`:                           `SELECT Odd "name`,
		"-- a remark: DELETE FROM x\nSELECT /* UPDATE y */ clock_timestamp()":                                                       "SELECT clock_timestamp",
		`WITH RECURSIVE t (id) AS (SELECT 1) SELECT id FROM t`:                                                                      "SELECT",
		`SELECT FROM a JOIN b USING (id) LEFT JOIN maintenance.leases l USING (id) JOIN a AS again ON true`:                         "SELECT a b",
		`SELECT 1 FROM a UNION SELECT 1 FROM b UNION SELECT 1 FROM c UNION SELECT 1 FROM d`:                                         "SELECT a b c …",
		`WITH t AS (SELECT count(*) FROM unnest($1)) SELECT pg_notify(x, y) FROM t`:                                                 "SELECT pg_notify",
		`UPDATE a SET b = $tag$ DELETE FROM $ c $tag$, d = $$ DELETE FROM e $$, f = E'\' DELETE FROM g' WHERE h = $1`:               "UPDATE a",
		"LOCK TABLE ONLY public.users IN SHARE MODE":                                                                                "LOCK users", "begin": "BEGIN", "": "", "DELETE FROM": "DELETE", "'": "",
	} {
		if got := repo.Summarize(sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

func TestSummary_EveryStatementOfOursHasOneThatIsShort(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[A-Z]+( [a-z_0-9.]+)?( [A-Z]+ [a-z_0-9.]+| [a-z_0-9.]+| …)*$`)
	for name, sql := range statements(t) {
		if got := repo.Summarize(sql); !form.MatchString(got) || len(got) > 120 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func BenchmarkSummary(b *testing.B) {
	sql := statements(&testing.T{})["purgeAllSQL with removal"]
	b.ReportAllocs()
	for b.Loop() {
		repo.Summarize(sql)
	}
}

func FuzzSummary_AnyTextHasOne(f *testing.F) {
	f.Add(`WITH a AS (SELECT "b`)
	f.Fuzz(func(_ *testing.T, sql string) { repo.Summarize(sql) })
}
