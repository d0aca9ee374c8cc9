package capture

import (
	"context"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// AdoptedKey is a foreign key that `caretaker lfk adopt` has dropped and replaced by a definition.
type AdoptedKey struct {
	// Schema and Table have the columns, which refer to ParentSchema and Parent.
	Schema, Table        string
	Columns              []string
	ParentSchema, Parent string
	// Definition is the constraint's, with all names qualified.
	Definition string
}

// Named returns its name in commands: sales.orders.customer_id.
func (k AdoptedKey) Named() string {
	return catalog.Table{Schema: k.Schema, Name: k.Table}.Written() + "." + strings.Join(k.Columns, ",")
}

// RecordedParent returns the name of its parent in records.
func (k AdoptedKey) RecordedParent() string {
	return catalog.Table{Schema: k.ParentSchema, Name: k.Parent}.Recorded("")
}

// ParentColumns returns the columns that the key's columns refer to, one by one, none if the
// definition cannot be parsed.
func (k AdoptedKey) ParentColumns() []string { return ReferencedColumns(k.Definition) }

// definitionPattern matches how pg_get_constraintdef begins a foreign key, up to the parent's
// columns. identifierPattern matches a name there.
var (
	identifierPattern = regexp.MustCompile(`"(?:[^"]|"")+"|[^"(),. ]+`)
	definitionPattern = regexp.MustCompile(`^FOREIGN KEY \((?:"(?:[^"]|"")+"|[^")])+\) REFERENCES ` +
		`(?:"(?:[^"]|"")+"|[^"(])+\(((?:"(?:[^"]|"")+"|[^")])+)\)`)
)

// ReferencedColumns returns the parent's columns in a foreign key's definition, in their order.
func ReferencedColumns(definition string) []string {
	found := definitionPattern.FindStringSubmatch(definition)
	if found == nil {
		return nil
	}
	columns := identifierPattern.FindAllString(found[1], -1)
	for i, name := range columns {
		if inner, quoted := strings.CutPrefix(name, `"`); quoted {
			columns[i] = strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `""`, `"`)
		}
	}
	return columns
}

// adoptedKeysSQL leaves out keys of missing tables, which need no cleanup, and constraints that
// exist again, which clean up themselves.
const adoptedKeysSQL = `
SELECT f.schema, f."table", f.columns, f.parent_schema, f.parent, f.definition
FROM maintenance.adopted_foreign_keys f
JOIN pg_namespace n ON n.nspname = f.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = f."table"
WHERE NOT EXISTS (
  SELECT FROM pg_constraint k
  WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.conname::text = f.name AND k.convalidated)
ORDER BY f.schema, f."table", f.name`

// AdoptedKeys reads the foreign keys of this database that are now loose.
func (d Capture) AdoptedKeys(ctx context.Context) ([]AdoptedKey, error) {
	return pg.Collect(ctx, d.db, pg.NewQuery("read adopted foreign keys", adoptedKeysSQL),
		pgx.RowToStructByPos[AdoptedKey])
}
