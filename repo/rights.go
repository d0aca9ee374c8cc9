package repo

import (
	"context"
	"fmt"
)

// deniedState is the SQLSTATE of a missing privilege, and of row-level security.
const deniedState = "42501"

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
