package pg

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/repo/dberr"
)

// schemaSQL also finds a schema of search_path that exists, but is closed to our role.
const schemaSQL = `
SELECT coalesce(current_schema(), ''), current_setting('search_path'), quote_ident(current_user), coalesce((
  SELECT quote_ident(n.nspname)
  FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY AS s (name, i)
  JOIN pg_namespace n ON n.nspname = CASE trim(both ' "' FROM s.name) WHEN '$user' THEN current_user ELSE trim(both ' "' FROM s.name) END
  WHERE NOT has_schema_privilege(n.oid, 'USAGE') ORDER BY s.i DESC LIMIT 1), '')`

// ApplicationSchema returns the first schema of the search_path that exists and that our role may
// use. If none exists, the error is a [*dberr.NoSchemaError]. Its advice names the missing right,
// or the search_path to set.
func (d *Database) ApplicationSchema(ctx context.Context) (schema string, err error) {
	var path, role, closed string
	err = QueryRow(ctx, d, "find the application schema", []any{&schema, &path, &role, &closed}, schemaSQL)
	switch {
	case err != nil || schema != "":
		return schema, err
	case closed != "":
		return "", &dberr.NoSchemaError{Database: d.Name, Advice: fmt.Sprintf("run GRANT USAGE ON SCHEMA %s TO %s", closed, role)}
	}
	return "", &dberr.NoSchemaError{Database: d.Name, Advice: fmt.Sprintf(
		"no schema in search_path (%s) exists, so set search_path for the role %s or in "+
			"databases.%s.url", path, role, d.Name)}
}
