// Package catalog reads a database's tables, columns, foreign keys, partitions, triggers, and the
// rights of our role. It changes nothing.
package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Catalog is the requested part of a database's application schema: the tables, columns and foreign
// keys that exist. It is a snapshot for one run or job, and not safe for concurrent use.
type Catalog struct {
	Database *pg.Database
	Tables   map[string]*Relation
	Keys     []ForeignKey
	Parts    map[Table][]Part
	// hiding is a table whose rows row-level security may hide, "" if none was requested.
	hiding string
	// UncheckedRights: the read rights of our role do not matter.
	UncheckedRights bool
}

// Table names a table with its schema.
type Table struct{ Schema, Name string }

// String returns the table's own name, for messages and counts.
func (t Table) String() string { return t.Name }

// SQL returns the quoted name with its schema.
func (t Table) SQL() string { return stmt.Quote(t.Schema, t.Name) }

// Relation is a requested table of a catalogue.
type Relation struct {
	Table
	Partitioned bool
	// Readable: our role may read all rows.
	Readable bool
	columns  map[string]Column
	// Key is the expression that a statement can return for each changed row: see [pg.KeyOfSQL].
	Key string
}

// Column is a column of a table.
type Column struct {
	// Name, and Type as PostgreSQL writes it, without its modifier, so that a cast truncates
	// nothing.
	Name, Type string
	NotNull    bool
	// HasDefault: an INSERT may omit it.
	HasDefault bool
	// Indexed: an index of all rows begins with it.
	Indexed bool
	// Following is the column, part of the primary key, that an index has directly after this one.
	// Sweeps continue after its last value. It is empty without such an index.
	Following string
}

// Actions of foreign keys when the row they refer to is deleted, as in PostgreSQL's confdeltype.
const (
	OnDeleteCascade = "c"
	OnDeleteSetNull = "n"

	OnDeleteSetDefault = "d"
)

// ForeignKey is a foreign key of any schema. For a partitioned table it is the table's own, not
// that of its partitions.
type ForeignKey struct {
	Name          string
	Child, Parent Table
	// Columns of the child refer to ParentColumns in the same order. Only the child's have NotNull
	// set.
	Columns, ParentColumns []Column
	// OnDelete is one of the constants above, or another action, which caretaker leaves to the
	// database.
	OnDelete string
	// SetNull are the columns that ON DELETE SET NULL sets.
	SetNull     []string
	Partitioned bool
	// Readable: our role may read all rows of the parent.
	Readable bool
	// Enforced is false for a key without effect, which PostgreSQL 18 allows.
	Enforced bool
	// Key is the key of the child's rows: see [pg.KeyOfSQL].
	Key string
}

// tablesSQL reads ordinary and partitioned tables of the application schema. A table whose enabled
// trigger refuses every write is a leftover of a split database. tablesSQL reads the column numbers
// of the primary key and the first columns of all indexes. Of indexes for walking through rows it
// reads the first two columns. Of the columns it reads those named in $2 and those of the primary
// key.
const tablesSQL = `
SELECT n.nspname, c.relname, c.relkind = 'p', has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
  (pk.indkey::int2[])[:pk.indnkeyatts - 1],
  ARRAY (
    SELECT ARRAY[i.indkey[0], i.indkey[1]] FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indnkeyatts > 1 AND i.indisvalid AND i.indpred IS NULL
      AND pg_index_column_has_property(i.indexrelid, 2, 'asc')
    ORDER BY i.indnkeyatts),
  ARRAY (SELECT i.indkey[0] FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL),
  ARRAY (
    SELECT ARRAY[a.attnum::text, a.attname, format_type(a.atttypid, -1), a.attnotnull::text,
      (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '')::text]
    FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attname = ANY ($2::name[]) OR a.attnum = ANY (pk.indkey)))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
WHERE c.relname = ANY ($1::name[]) AND c.relkind IN ('r', 'p') AND NOT ` + ProtectedSQL

// ProtectedSQL is true if an enabled trigger of a table c refuses every write: GitLab leaves such
// triggers on the leftover tables of a split.
const ProtectedSQL = `EXISTS (
  SELECT FROM pg_trigger t
  WHERE t.tgrelid = c.oid AND t.tgenabled IN ('O', 'A')
    AND t.tgfoid = ANY (ARRAY(SELECT oid FROM pg_proc WHERE proname = 'gitlab_schema_prevent_write')))`

// Tables reads tables with some of their columns. If our role cannot read an existing table, or all
// of its rows, the error is [dberr.ErrForbidden].
func (d Schema) Tables(ctx context.Context, wanted map[string][]string) (*Catalog, error) {
	return catalog(ctx, d.db, wanted, false)
}

// Catalog is Tables with all foreign keys of the database.
func (d Schema) Catalog(ctx context.Context, wanted map[string][]string) (*Catalog, error) {
	return catalog(ctx, d.db, wanted, true)
}

func catalog(
	ctx context.Context, d *pg.Database, wanted map[string][]string, keys bool,
) (*Catalog, error) {
	c := NewCatalog(d)
	if err := c.read(ctx, wanted, keys); err != nil {
		return nil, err
	}
	if c.hiding != "" {
		return nil, fmt.Errorf("table %s on %s: row-level security may hide rows (%w): "+
			"give the role the BYPASSRLS attribute", c.hiding, d.Name, dberr.ErrForbidden)
	}
	for name, r := range c.Tables {
		if r == nil {
			return nil, fmt.Errorf("table %s on %s: %w: grant SELECT on the table to the role "+
				"(to list all missing privileges, run `caretaker doctor --grants`)", name, d.Name, dberr.ErrForbidden)
		}
	}
	return c, nil
}

// NewCatalog returns an empty catalogue.
func NewCatalog(d *pg.Database) *Catalog {
	return &Catalog{Database: d, Tables: map[string]*Relation{}, Parts: map[Table][]Part{}}
}

// read fills the catalogue.
func (c *Catalog) read(ctx context.Context, wanted map[string][]string, keys bool) error {
	d := c.Database
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := pg.BeginRoutine(ctx, d, "read the system catalog")
	batch := &pgx.Batch{}
	c.QueueTables(batch, wanted)
	if keys {
		c.QueueKeys(batch, AllActions)
	}
	err := pg.PoolOf(d).SendBatch(ctx, batch).Close()
	o.End(ctx, err)
	if err := pg.Wrap(ctx, d, "read the system catalog", err); err != nil {
		return err
	}
	if len(c.Tables) == 0 && len(wanted) > 0 {
		_, err = d.ApplicationSchema(ctx)
	}
	return err
}

// QueueTables adds to a batch the queries for tables with these of their columns.
func (c *Catalog) QueueTables(batch *pgx.Batch, wanted map[string][]string) {
	tables := slices.AppendSeq(make([]string, 0, len(wanted)), maps.Keys(wanted))
	columns := slices.Concat(slices.AppendSeq([][]string{{}}, maps.Values(wanted))...)
	batch.Queue(tablesSQL, tables, columns).Query(func(rows pgx.Rows) error {
		return c.readTables(rows, wanted)
	})
}

// readTables leaves nil for a table that our role cannot read. Columns that are only in the primary
// key were not requested.
func (c *Catalog) readTables(rows pgx.Rows, wanted map[string][]string) error {
	var t Table
	var partitioned, readable, hiding bool
	var i tableIndexes
	var columns [][]string
	_, err := pgx.ForEachRow(rows, []any{
		&t.Schema, &t.Name, &partitioned, &readable, &hiding, &i.primary, &i.walks, &i.firsts, &columns,
	}, func() error {
		switch {
		case hiding && !c.UncheckedRights:
			c.hiding = t.Name
		case !readable && !c.UncheckedRights:
			c.Tables[t.Name] = nil
		default:
			r := &Relation{
				Table: t, Partitioned: partitioned, Readable: readable && !hiding, columns: map[string]Column{},
			}
			r.addColumns(columns, wanted[t.Name], i)
			c.Tables[t.Name] = r
		}
		return nil
	})
	return err
}

// tableIndexes are the columns of a table's indexes, by number, as tablesSQL reads them.
type tableIndexes struct {
	primary, firsts []int16
	walks           [][]int16
}

// addColumns adds the columns as tablesSQL reads them.
func (r *Relation) addColumns(read [][]string, wanted []string, indexes tableIndexes) {
	byNumber := map[int16]Column{}
	for _, c := range read {
		number, _ := strconv.ParseInt(c[0], 10, 16) // it is an int2 of the database
		byNumber[int16(number)] = Column{Name: c[1], Type: c[2], NotNull: c[3] == "true", HasDefault: c[4] == "true"}
	}
	r.Key = keyOf(indexes.primary, byNumber)
	for number, column := range byNumber {
		column.Indexed = slices.Contains(indexes.firsts, number)
		i := slices.IndexFunc(indexes.walks, func(walk []int16) bool {
			return walk[0] == number && slices.Contains(indexes.primary, walk[1]) &&
				slices.Contains([]string{"integer", "bigint"}, byNumber[walk[1]].Type)
		})
		if i >= 0 {
			column.Following = byNumber[indexes.walks[i][1]].Name
		}
		if slices.Contains(wanted, column.Name) {
			r.columns[column.Name] = column
		}
	}
}

// keyOf is [pg.KeyOfSQL] for a primary key of these columns, by their numbers.
func keyOf(primary []int16, columns map[int16]Column) string {
	names := make([]string, len(primary))
	for i, number := range primary {
		names[i] = "t." + stmt.Quote(columns[number].Name)
	}
	switch {
	case len(names) == 0:
		return ""
	case len(names) > 1:
		return "ROW(" + strings.Join(names, ", ") + ")::text"
	case slices.Contains([]string{"bigint", "integer", "smallint"}, columns[primary[0]].Type):
		return names[0]
	}
	return names[0] + "::text"
}

// Table returns a table of the application schema, nil if it was not requested or does not exist.
func (c *Catalog) Table(name string) *Relation { return c.Tables[name] }

// Column finds a column. It returns false if the column or its table was not requested or does not
// exist.
func (r *Relation) Column(name string) (Column, bool) {
	if r == nil {
		return Column{}, false
	}
	column, found := r.columns[name]
	return column, found
}

// Has reports whether the table and all these columns exist.
func (r *Relation) Has(columns ...string) bool {
	return r != nil && !slices.ContainsFunc(columns, func(name string) bool {
		_, found := r.columns[name]
		return !found
	})
}

// References returns the foreign keys that refer to a table, by their tables and names.
func (c *Catalog) References(to Table) (keys []ForeignKey) {
	for _, k := range c.Keys {
		if k.Parent == to {
			keys = append(keys, k)
		}
	}
	return keys
}

// Violated returns the foreign key that an error of the database names: rows still refer to the row
// to delete.
func (c *Catalog) Violated(e *dberr.Error) (k ForeignKey, found bool) {
	said := e.Said()
	i := slices.IndexFunc(c.Keys, func(k ForeignKey) bool {
		return k.Name == said.ConstraintName && k.Child == Table{said.SchemaName, said.TableName}
	})
	if i < 0 {
		return ForeignKey{}, false
	}
	return c.Keys[i], true
}

// Column returns the child's column that refers to the parent's column of this name, false if none
// exists.
func (k ForeignKey) Column(parentColumn string) (Column, bool) {
	for i, c := range k.ParentColumns {
		if c.Name == parentColumn {
			return k.Columns[i], true
		}
	}
	return Column{}, false
}

// Required returns the first column that ON DELETE SET NULL sets although it is NOT NULL, "" if
// none exists.
func (k ForeignKey) Required() string {
	for _, c := range k.Columns {
		if c.NotNull && slices.Contains(k.SetNull, c.Name) {
			return c.Name
		}
	}
	return ""
}

// ColumnNames lists the child's columns for messages.
func (k ForeignKey) ColumnNames() string { return JoinColumns(k.Columns) }

// JoinColumns lists names of columns, separated by commas.
func JoinColumns(columns []Column) string { return strings.Join(NamesOf(columns), ",") }

// NamesOf returns the names of columns.
func NamesOf(columns []Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}
