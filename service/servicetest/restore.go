package servicetest

import (
	"maps"
	"slices"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// InTurn gives the estate to one subtest. The first call keeps rows and definitions. Later calls
// restore them. It tracks no grants, types, domains or texts of views: a test that changes those
// needs an estate of its own.
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
-- Objects are identified as in pg_depend, so a renamed object keeps its identity.
CREATE TEMP VIEW things AS
SELECT 1 AS level, 'pg_class'::regclass AS class, oid AS id, 0 AS sub, oid AS at, relname::text AS name,
  concat_ws(' ', relnamespace, relispartition, relrowsecurity) AS look
FROM pg_class WHERE relkind IN ('r', 'p', 'S', 'v') AND relnamespace IN (SELECT oid FROM spaces) AND oid NOT IN (TABLE extended)
UNION ALL SELECT 1, 'pg_namespace'::regclass, oid, 0, oid, nspname, '' FROM spaces
UNION ALL SELECT 2, 'pg_proc'::regclass, oid, 0, pronamespace, proname, concat(proargtypes, ' ', md5(prosrc))
FROM pg_proc WHERE prokind = 'f' AND pronamespace IN (SELECT oid FROM spaces) AND oid NOT IN (TABLE extended)
UNION ALL SELECT 3, 'pg_class'::regclass, attrelid, attnum, attrelid, attname, concat_ws(' ', atttypid, atttypmod, attnotnull, pg_get_expr(adbin, adrelid))
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped AND relnamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 4, 'pg_constraint'::regclass, oid, 0, conrelid, conname, ''
FROM pg_constraint WHERE conrelid <> 0 AND conparentid = 0 AND coninhcount = 0 AND contype IN ('p', 'u', 'f', 'c', 'x') AND connamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 5, 'pg_class'::regclass, c.oid, 0, indrelid, c.relname, ''
FROM pg_index JOIN pg_class c ON c.oid = indexrelid
WHERE NOT relispartition AND relnamespace IN (SELECT oid FROM spaces) AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)
UNION ALL SELECT 6, 'pg_trigger'::regclass, oid, 0, tgrelid, tgname, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0
UNION ALL SELECT 6, 'pg_rewrite'::regclass, r.oid, 0, ev_class, rulename, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class
WHERE rulename <> '_RETURN' AND relnamespace IN (SELECT oid FROM spaces)
UNION ALL SELECT 7, 'pg_database'::regclass, setdatabase, 0, setdatabase, 'setting', setconfig::text
FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase AND datname = current_database();
-- What changes with each change of a definition.
CREATE TEMP VIEW stamp AS SELECT concat_ws(' ', (SELECT concat(count(*), ' ', sum(hashtext(concat(relname, relrowsecurity)))) FROM pg_class), (SELECT sum(hashtext(nspname::text)) FROM spaces),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_attribute), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_attrdef),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_proc), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_constraint),
  (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_trigger), (SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM pg_rewrite),
  (SELECT string_agg(setconfig::text, '') FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase AND datname = current_database())) AS stamp;
CREATE TEMP TABLE remembered AS SELECT *, CASE (pg_identify_object(class, id, sub)).type
  WHEN 'function' THEN pg_get_functiondef(id)
  WHEN 'table constraint' THEN format('ALTER TABLE %s ADD CONSTRAINT %I %s', at::regclass, name, pg_get_constraintdef(id))
  WHEN 'table column' THEN (
    SELECT format('ALTER TABLE %1$s ADD IF NOT EXISTS %2$I %3$s; ALTER TABLE %1$s ALTER %2$I DROP DEFAULT, ALTER %2$I TYPE %3$s USING NULL, ALTER %2$I %4$s NOT NULL',
      at::regclass, name, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'SET' ELSE 'DROP' END)
      || coalesce(', ALTER ' || quote_ident(name) || ' SET DEFAULT ' || pg_get_expr(adbin, adrelid), '')
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = id AND attnum = sub)
  WHEN 'index' THEN pg_get_indexdef(id) WHEN 'trigger' THEN pg_get_triggerdef(id) WHEN 'rule' THEN pg_get_ruledef(id)
  WHEN 'table' THEN format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', at::regclass) END AS made FROM things;
CREATE TEMP TABLE counted AS SELECT seqrelid, seqstart, pg_sequence_last_value(seqrelid) AS last FROM pg_sequence;
CREATE TEMP TABLE stamped (stamp text);
DO $$ DECLARE t oid; BEGIN
  FOR t IN SELECT id FROM remembered JOIN pg_class ON oid = id WHERE level = 1 AND relkind = 'r' AND pg_relation_size(oid) > 0 LOOP
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
  FOR name IN SELECT oid FROM remembered JOIN pg_class ON oid = id WHERE level = 1 AND relkind = 'r' AND pg_relation_size(oid) > 0 LOOP
    EXECUTE format('DELETE FROM %s', name);
  END LOOP;
END $$;`

// undoSQL brings back the definitions that rememberSQL has kept.
const undoSQL = `
DO $$
DECLARE x record; o record; other text;
BEGIN
  IF (TABLE stamp) = (TABLE stamped) THEN
    RETURN;
  END IF;
  PERFORM set_config('client_min_messages', 'warning', true);
  -- What is new, or a trigger of another state, is dropped; then what is there gets its name again.
  CREATE TEMP TABLE present AS TABLE things;
  FOR x IN SELECT t.*, k.name AS was
      FROM present t LEFT JOIN remembered k ON (k.class, k.id, k.sub) = (t.class, t.id, t.sub) AND (k.look = t.look OR t.level <> 6)
      WHERE t.name IS DISTINCT FROM k.name ORDER BY k.name IS NOT NULL, t.level LOOP
    o := pg_identify_object(x.class, x.id, x.sub);
    CONTINUE WHEN o.identity IS NULL;
    EXECUTE CASE
      WHEN o.type = 'database' THEN format('ALTER DATABASE %s RESET ALL', o.identity)
      WHEN o.type LIKE 'table %' AND x.was IS NULL THEN format('ALTER TABLE %s DROP %s %I CASCADE', x.at::regclass, substr(o.type, 7), x.name)
      WHEN o.type LIKE 'table %' THEN format('ALTER TABLE %s RENAME %s %I TO %I', x.at::regclass, substr(o.type, 7), x.name, x.was)
      WHEN x.was IS NULL THEN format('DROP %s %s CASCADE', o.type, o.identity)
      ELSE format('ALTER %s %s RENAME TO %I', o.type, o.identity, x.was) END;
  END LOOP;
  TRUNCATE present;
  INSERT INTO present TABLE things;
  FOR x IN SELECT k.made FROM remembered k LEFT JOIN present t USING (class, id, sub)
      WHERE k.made IS NOT NULL AND t.look IS DISTINCT FROM k.look ORDER BY k.level LOOP
    EXECUTE x.made;
  END LOOP;
  TRUNCATE present;
  INSERT INTO present TABLE things;
  UPDATE remembered k SET id = t.id, sub = t.sub FROM present t
    WHERE (t.level, t.class, t.at, t.name, t.look) = (k.level, k.class, k.at, k.name, k.look) AND (t.id, t.sub) <> (k.id, k.sub);
  SELECT string_agg(concat_ws(' ', class, at::regclass, name, look), ', ') INTO other
    FROM present t FULL JOIN remembered k USING (class, id, sub, at, name, look) WHERE t.level IS NULL OR k.level IS NULL;
  DROP TABLE present;
  IF other <> '' THEN
    RAISE 'not undone: %', other;
  END IF;
  UPDATE stamped SET stamp = stamp.stamp FROM stamp;
END $$;`

// rowsBackSQL fills the tables and sequences.
const rowsBackSQL = `
DO $$ DECLARE t oid; list text; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR t IN SELECT id FROM remembered WHERE level = 1 AND to_regclass('pg_temp.rows_' || id) IS NOT NULL LOOP
    SELECT string_agg(quote_ident(attname), ', ') INTO list FROM pg_attribute
      WHERE attrelid = t AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM pg_temp.rows_%s', t::regclass, list, t);
  END LOOP;
  PERFORM setval(seqrelid, coalesce(last, c.seqstart), last IS NOT NULL) FROM counted c JOIN pg_sequence USING (seqrelid)
    WHERE pg_sequence_last_value(seqrelid) IS DISTINCT FROM last;
END $$`
