package servicetest

import (
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// objectsSQL are the tables, indexes, functions, types and constraints of the application and, last, the tables that have
// rows. Undo removes an object or the rows.
const objectsSQL = `
SELECT 1 AS step, oid, 'public' AS part, format('DROP TABLE IF EXISTS %I CASCADE', relname) AS undo FROM pg_class
WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace
UNION ALL SELECT 2, oid, 'public', 'DROP FUNCTION IF EXISTS ' || oid::regprocedure || ' CASCADE' FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 3, conrelid, conname, format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I CASCADE', conrelid::regclass, conname)
FROM pg_constraint WHERE conrelid <> 0 AND connamespace = 'public'::regnamespace
UNION ALL SELECT 4, oid, 'public', format('DROP INDEX IF EXISTS %I CASCADE', relname) FROM pg_class
WHERE relkind IN ('i', 'I') AND relnamespace = 'public'::regnamespace
UNION ALL SELECT 5, oid, 'public', format('DROP TYPE IF EXISTS %I CASCADE', typname) FROM pg_type
WHERE typtype = 'e' AND typnamespace = 'public'::regnamespace
UNION ALL SELECT 6, c.oid, nspname, 'DELETE FROM ' || c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname !~ '^(pg_|information_schema$)' AND pg_relation_size(c.oid) > 0`

const keptSQL = `CREATE TEMP TABLE IF NOT EXISTS kept AS SELECT step, oid, part FROM (` + objectsSQL + `) o WHERE step < 6 OR part = 'maintenance'`

// restoreSQL removes what was made since, and all rows of the application.
const restoreSQL = `DO $$ DECLARE n int; statement text; BEGIN
	PERFORM set_config('session_replication_role', 'replica', true);
	FOR n IN 1 .. 6 LOOP
		FOR statement IN SELECT undo FROM (` + objectsSQL + `) o
				WHERE step = n AND NOT EXISTS (SELECT FROM kept k WHERE (k.step, k.oid, k.part) = (o.step, o.oid, o.part)) LOOP
			EXECUTE statement;
		END LOOP;
	END LOOP;
END $$`

// InTurn hands an estate to a subtest until that ends: with no rows, tables, functions, triggers, constraints or indexes of
// another subtest. A subtest undoes other changes of the schema itself, or is the last.
func (e *Estate) InTurn(t *testing.T) {
	t.Helper()
	all, open := e.T, slices.Clone(e.Open)
	e.T = t
	t.Cleanup(func() { e.T, e.Open = all, open })
	for database := range e.SQL {
		e.Exec(database, keptSQL)
		e.Exec(database, restoreSQL)
	}
	if e.begin != nil {
		e.begin()
	}
}

// InTurn is [Estate.InTurn], with an empty log and the service that the groups have at first.
func (g *Groups) InTurn(t *testing.T) {
	t.Helper()
	s := g.Service
	t.Cleanup(func() { g.Service = s })
	g.Log.Reset()
	g.Estate.InTurn(t)
}

// Turns runs tests in their order on the same databases, as subtests of their names.
func Turns[E interface{ InTurn(t *testing.T) }](t *testing.T, e E, tests ...func(E)) {
	t.Helper()
	for _, test := range tests {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".")+1:], func(t *testing.T) {
			e.InTurn(t)
			test(e)
		})
	}
}

// InTurn runs cases one after the other on the same databases, each as a subtest that finds what prepare makes.
func InTurn[F any](e *Estate, f F, prepare func(), cases map[string]func(F)) {
	e.T.Helper()
	for name, do := range cases {
		e.T.Run(name, func(t *testing.T) {
			e.InTurn(t)
			prepare()
			do(f)
		})
	}
}

// InTurn runs cases one after the other on the same databases, each as a subtest that finds the rows of [NewGhosts].
func (g *Ghosts) InTurn(cases map[string]func(g *Ghosts)) {
	g.T.Helper()
	InTurn(g.Estate, g, func() {
		g.Exec("main", ghostFixtureSQL)
		g.Log.Reset()
	}, cases)
}
