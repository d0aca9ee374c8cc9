package repo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// missingRightSQL says what to grant to our role. A server says in its own language that something
// is denied, but always by name: $1 is looked through for the names of schemas, tables and
// sequences that the role has not all rights on that caretaker needs, or with $3 the right to read.
// The longest name is the one, so that public.user is not taken for public.users.
const missingRightSQL = `
WITH lacking (schema, name, rights, object) AS (
  SELECT n.nspname, n.nspname, 'USAGE', format('SCHEMA %I', n.nspname)
  FROM pg_namespace n
  WHERE position(n.nspname::text IN $1::text) > 0 AND NOT has_schema_privilege(n.oid, 'USAGE')
  UNION ALL
  SELECT n.nspname, c.relname, 'USAGE', format('SEQUENCE %I.%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE position(c.relname::text IN $1::text) > 0 AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
  UNION ALL
  SELECT n.nspname, c.relname, rights.missing, format('%I.%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL (
    SELECT string_agg(r.name, ', ') AS missing
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS r (name, n)
    WHERE NOT has_table_privilege(c.oid, r.name) AND (r.name = 'SELECT' OR NOT $3)
      AND (r.name <> 'INSERT' OR n.nspname = 'maintenance' OR c.relname = ANY ($2::name[]))
  ) rights
  WHERE c.relkind IN ('r', 'p', 'v', 'f') AND position(c.relname::text IN $1::text) > 0 AND rights.missing IS NOT NULL
)
SELECT format('GRANT %s ON %s TO %I', rights, object, current_user) FROM lacking
ORDER BY length(name) DESC, schema = 'maintenance' DESC, schema = current_schema() DESC NULLS LAST, schema LIMIT 1`

// insertedTables are those of the application that rows are inserted into.
func insertedTables() []string {
	return []string{"users", "ghost_user_migrations", "users_ghost_user_migrations", queueTable}
}

// readingKey is the context key of onlyReading.
type readingKey struct{}

// onlyReading marks statements on tables that are only read: a refusal asks for no more than SELECT.
func onlyReading(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, true)
}

// missingRight is the GRANT that a refusal asks for, "" if nobody knows.
func (d *Database) missingRight(ctx context.Context, refusal string) (grant string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	reading := ctx.Value(readingKey{}) != nil
	if d.pool.QueryRow(ctx, missingRightSQL, refusal, insertedTables(), reading).Scan(&grant) != nil {
		return ""
	}
	return grant
}

// deniedState is the SQLSTATE of a missing privilege.
const deniedState = "42501"

// grant is missingRight for an error of the server, "" for any other.
func (d *Database) grant(ctx context.Context, err error) string {
	if denied, ok := errors.AsType[*pgconn.PgError](err); ok && denied.Code == deniedState {
		return d.missingRight(ctx, denied.Message)
	}
	return ""
}

// NoSchemaError says why a database has no application schema: current_schema() is NULL.
type NoSchemaError struct {
	// Database is the configured name, Advice what to do.
	Database, Advice string
}

// Error names the database, and what to do.
func (e *NoSchemaError) Error() string {
	return fmt.Sprintf("database %s has no application schema: %s", e.Database, e.Advice)
}

// Public says that the text is fit for clients.
func (e *NoSchemaError) Public() {}

// schemaSQL also looks for a schema of search_path that is there, but not for our role.
const schemaSQL = `
SELECT coalesce(current_schema(), ''), current_setting('search_path'), quote_ident(current_user), coalesce((
  SELECT quote_ident(n.nspname)
  FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY AS s (name, i)
  JOIN pg_namespace n ON n.nspname = CASE trim(both ' "' FROM s.name) WHEN '$user' THEN current_user ELSE trim(both ' "' FROM s.name) END
  WHERE NOT has_schema_privilege(n.oid, 'USAGE') ORDER BY s.i DESC LIMIT 1), '')`

// ApplicationSchema is the first schema of the search_path that is there and that our role may use;
// if there is none, the error is a [*NoSchemaError].
func (d *Database) ApplicationSchema(ctx context.Context) (schema string, err error) {
	var path, role, closed string
	err = d.queryRow(ctx, "look for the application schema", []any{&schema, &path, &role, &closed}, schemaSQL)
	switch {
	case err != nil || schema != "":
		return schema, err
	case closed != "":
		return "", &NoSchemaError{d.Name, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", closed, role)}
	}
	return "", &NoSchemaError{d.Name, fmt.Sprintf(
		"none of search_path (%s) is there: set search_path of the role %s, or in databases.%s.url", path, role, d.Name)}
}
