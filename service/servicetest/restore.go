package servicetest

import (
	"maps"
	"slices"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// InTurn hands the estate to a subtest until its end. Its databases are then as they were at the first call of
// InTurn: what was made or changed since is undone. What cannot be undone fails the test, and needs an estate of its own.
func (e *Estate) InTurn(t *testing.T) {
	t.Helper()
	all, open, urls, conns := e.T, slices.Clone(e.Open), maps.Clone(e.URLs), maps.Clone(e.SQL)
	e.T = t
	t.Cleanup(func() { e.T, e.Open, e.URLs, e.SQL = all, open, urls, conns })
	for database := range e.SQL {
		if e.Value(database, `SELECT to_regclass('pg_temp.remembered')`) == "NULL" {
			e.Exec(database, rememberSQL)
			continue
		}
		_, err := e.SQL[database].Exec(t.Context(), forgetRowsSQL+undoSQL+rowsBackSQL)
		assert.NoError(t, err)
	}
}

// rememberSQL keeps definitions, rows and sequences in temporary tables of the estate's own connection.
const rememberSQL = `
CREATE TEMP VIEW spaces AS SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$';
-- What extensions have made.
CREATE TEMP VIEW extended AS SELECT objid FROM pg_depend WHERE deptype = 'e';
CREATE TEMP VIEW things AS
SELECT 1 AS level, CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, oid AS at, relname::text AS name, oid AS id,
  concat_ws(' ', relnamespace, relispartition) AS look
FROM pg_class WHERE relkind IN ('r', 'p', 'S', 'v') AND relnamespace IN (SELECT oid FROM spaces) AND oid NOT IN (TABLE extended)
UNION ALL SELECT 1, 'SCHEMA', oid, nspname, oid, '' FROM spaces
UNION ALL SELECT 2, 'FUNCTION', pronamespace, proname || ' ' || proargtypes::text, oid, md5(prosrc)
FROM pg_proc WHERE prokind = 'f' AND pronamespace IN (SELECT oid FROM spaces) AND oid NOT IN (TABLE extended)
UNION ALL SELECT 3, 'COLUMN', attrelid, attname, attrelid, concat_ws(' ', atttypid, atttypmod, attnotnull, pg_get_expr(adbin, adrelid))
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped AND relnamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 4, 'CONSTRAINT', conrelid, conname, oid, ''
FROM pg_constraint WHERE conrelid <> 0 AND conparentid = 0 AND coninhcount = 0 AND contype IN ('p', 'u', 'f', 'c', 'x') AND connamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 5, 'INDEX', indrelid, c.relname, c.oid, ''
FROM pg_index JOIN pg_class c ON c.oid = indexrelid
WHERE NOT relispartition AND relnamespace IN (SELECT oid FROM spaces) AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)
UNION ALL SELECT 6, 'TRIGGER', tgrelid, tgname, oid, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0
UNION ALL SELECT 6, 'RULE', ev_class, rulename, r.oid, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class
WHERE rulename <> '_RETURN' AND relnamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 7, 'SETTING', setdatabase, 'setting', 0::oid, setconfig::text
FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase AND datname = current_database();
-- What changes with each change of a definition.
CREATE TEMP VIEW stamp AS SELECT concat_ws(' ', (SELECT concat(count(*), ' ', sum(hashtext(relname::text))) FROM pg_class),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_attribute), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_attrdef),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_proc), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_constraint),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_trigger), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_rewrite),
  (SELECT string_agg(setconfig::text, '') FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase AND datname = current_database())) AS stamp;
CREATE TEMP TABLE remembered AS SELECT *, CASE kind
  WHEN 'FUNCTION' THEN pg_get_functiondef(id)
  WHEN 'CONSTRAINT' THEN format('ALTER TABLE %s ADD CONSTRAINT %I %s', at::regclass, name, pg_get_constraintdef(id))
  WHEN 'COLUMN' THEN (
    SELECT format('ALTER TABLE %1$s ALTER %2$I DROP DEFAULT, ALTER %2$I TYPE %3$s USING NULL, ALTER %2$I %4$s NOT NULL', at::regclass, name,
      format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'SET' ELSE 'DROP' END)
      || coalesce(', ALTER ' || quote_ident(name) || ' SET DEFAULT ' || pg_get_expr(adbin, adrelid), '')
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = at AND attname = name)
  WHEN 'INDEX' THEN pg_get_indexdef(id) WHEN 'TRIGGER' THEN pg_get_triggerdef(id) WHEN 'RULE' THEN pg_get_ruledef(id) END AS made FROM things;
CREATE TEMP TABLE counted AS SELECT seqrelid, seqstart, pg_sequence_last_value(seqrelid) AS last FROM pg_sequence;
CREATE TEMP TABLE stamped (stamp text);
DO $$ DECLARE t oid; BEGIN
  FOR t IN SELECT at FROM remembered JOIN pg_class ON oid = at WHERE kind = 'TABLE' AND relkind = 'r' AND pg_relation_size(oid) > 0 LOOP
    EXECUTE format('CREATE TEMP TABLE rows_%s AS TABLE %s', t, t::regclass);
  END LOOP;
END $$;
INSERT INTO stamped TABLE stamp`

// forgetRowsSQL empties the tables, and drops temporary ones.
const forgetRowsSQL = `
DO $$ DECLARE name regclass; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR name IN SELECT oid FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'
      AND relname !~ '^(remembered|counted|stamped|rows_\d+)$' LOOP
    EXECUTE format('DROP TABLE %s', name);
  END LOOP;
  FOR name IN SELECT oid FROM remembered JOIN pg_class ON oid = at WHERE kind = 'TABLE' AND relkind = 'r' AND pg_relation_size(oid) > 0 LOOP
    EXECUTE format('DELETE FROM %s', name);
  END LOOP;
END $$;`

// undoSQL brings back the definitions that rememberSQL has kept.
const undoSQL = `
DO $$
DECLARE x record; other text;
BEGIN
  IF (TABLE stamp) = (TABLE stamped) THEN
    RETURN;
  END IF;
  PERFORM set_config('client_min_messages', 'warning', true);
  FOR x IN SELECT t.* FROM things t LEFT JOIN remembered k USING (kind, at, name)
      WHERE k.kind IS NULL OR t.id <> k.id OR t.look <> k.look AND kind = 'TRIGGER' ORDER BY t.level LOOP
    CONTINUE WHEN x.kind NOT IN ('FUNCTION', 'SCHEMA', 'SETTING') AND NOT EXISTS (SELECT FROM pg_class WHERE oid = x.at);
    CASE x.kind
      WHEN 'SCHEMA' THEN EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', x.name);
      WHEN 'TABLE', 'SEQUENCE', 'VIEW' THEN EXECUTE format('DROP %s %s CASCADE', x.kind, x.id::regclass);
      WHEN 'FUNCTION' THEN CONTINUE WHEN NOT EXISTS (SELECT FROM pg_proc WHERE oid = x.id);
        EXECUTE format('DROP FUNCTION %s CASCADE', x.id::regprocedure);
      WHEN 'COLUMN' THEN EXECUTE format('ALTER TABLE %s DROP COLUMN IF EXISTS %I CASCADE', x.at::regclass, x.name);
      WHEN 'CONSTRAINT' THEN EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I CASCADE', x.at::regclass, x.name);
      WHEN 'INDEX' THEN CONTINUE WHEN NOT EXISTS (SELECT FROM pg_class WHERE oid = x.id);
        EXECUTE format('DROP INDEX %s CASCADE', x.id::regclass);
      WHEN 'TRIGGER' THEN EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', x.name, x.at::regclass);
      WHEN 'RULE' THEN EXECUTE format('DROP RULE IF EXISTS %I ON %s', x.name, x.at::regclass);
      WHEN 'SETTING' THEN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
      ELSE
    END CASE;
  END LOOP;
  FOR x IN SELECT k.made FROM remembered k LEFT JOIN things t USING (kind, at, name)
      WHERE k.made IS NOT NULL AND (t.kind IS NULL AND k.kind <> 'COLUMN' OR t.look <> k.look) ORDER BY k.level LOOP
    EXECUTE x.made;
  END LOOP;
  UPDATE remembered k SET id = t.id FROM things t WHERE (t.kind, t.at, t.name) = (k.kind, k.at, k.name) AND t.id <> k.id;
  SELECT string_agg(concat_ws(' ', kind, at::regclass, name, look), ', ') INTO other
    FROM things t FULL JOIN remembered k USING (kind, at, name, look) WHERE t.kind IS NULL OR k.kind IS NULL;
  IF other <> '' THEN
    RAISE 'not undone: %', other;
  END IF;
  UPDATE stamped SET stamp = stamp.stamp FROM stamp;
END $$;`

// rowsBackSQL fills the tables and sequences.
const rowsBackSQL = `
DO $$ DECLARE t oid; list text; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR t IN SELECT at FROM remembered WHERE kind = 'TABLE' AND to_regclass('pg_temp.rows_' || at) IS NOT NULL LOOP
    SELECT string_agg(quote_ident(attname), ', ') INTO list FROM pg_attribute
      WHERE attrelid = t AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM pg_temp.rows_%s', t::regclass, list, t);
  END LOOP;
  PERFORM setval(seqrelid, coalesce(last, c.seqstart), last IS NOT NULL) FROM counted c JOIN pg_sequence USING (seqrelid)
    WHERE pg_sequence_last_value(seqrelid) IS DISTINCT FROM last;
END $$`
