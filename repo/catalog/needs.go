package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Rights are permissions on the rows of a table.
type Rights uint8

// PostgreSQL's rights.
const (
	MaySelect Rights = 1 << iota
	MayInsert
	MayUpdate
	MayDelete
)

// Rights that steps need. Steps lock rows before they change or delete them, which requires the
// right to update.
const (
	ToRead   = MaySelect
	ToChange = MaySelect | MayUpdate
	ToRemove = MaySelect | MayUpdate | MayDelete
)

// String names the rights as GRANT does: "SELECT, UPDATE".
func (r Rights) String() string {
	var names []string
	for i, name := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Use is how a table of the application is used, if it exists.
type Use struct {
	// Table is named as [ParseTable] reads it.
	Table  string
	Rights Rights
	// Columns are the columns by any of which rows are found, separated by spaces. Missing ones do not
	// count.
	Columns string
	// Removes: rows are deleted with their dependants.
	Removes bool
}

// Needs lists how the workers and jobs use the application's tables of one database, regardless of
// the rights of our role.
type Needs struct {
	// Catalog has all foreign keys, and the requested tables.
	Catalog *Catalog
	Tables  map[Table]Rights
	// By are the users of each table.
	By map[Table][]string
	// Lookups are how rows are found.
	Lookups []Lookup
	// by is the worker or job to which Begin attributes the added needs. "" means none.
	by string
	// entered are the tables whose dependants have been added for this user.
	entered map[Table]bool
}

// Lookup is a search for rows of a table by any of some columns. An index for it may begin with the
// column Kind.
type Lookup struct {
	Table
	Kind    string
	Columns []string
}

// key identifies equal look-ups.
func (l Lookup) key() string {
	return strings.Join(append([]string{l.Schema, l.Name, l.Kind}, l.Columns...), "\x00")
}

// Needs reads the foreign keys and some tables. The result has no needs yet.
func (d Schema) Needs(ctx context.Context, wanted map[string][]string) (*Needs, error) {
	n := &Needs{Catalog: NewCatalog(d.db), Tables: map[Table]Rights{}, By: map[Table][]string{}}
	n.Catalog.UncheckedRights = true
	return n, n.Catalog.read(ctx, wanted, true)
}

// Begin sets the user of the needs added from now on.
func (n *Needs) Begin(by string) { n.by, n.entered = by, map[Table]bool{} }

// Enter reports, once, whether the dependants of a table must still be added.
func (n *Needs) Enter(t Table) bool {
	first := !n.entered[t]
	n.entered[t] = true
	return first
}

// Add adds rights on a table.
func (n *Needs) Add(t Table, r Rights) {
	n.Tables[t] |= r
	if n.by != "" && !slices.Contains(n.By[t], n.by) {
		n.By[t] = append(n.By[t], n.by)
	}
}

const writtenTablesSQL = `
SELECT w.number, n.nspname, c.relname
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (schema, name, number)
JOIN pg_namespace n ON n.nspname = coalesce(nullif(w.schema, ''), current_schema())
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
WHERE c.relkind IN ('r', 'p') AND NOT ` + ProtectedSQL + `
ORDER BY w.number`

// AddUses adds the uses of tables that exist, and passes each table with removals to remove.
func (n *Needs) AddUses(ctx context.Context, uses []Use, remove func(Table)) error {
	schemas, tables := make([]string, len(uses)), make([]string, len(uses))
	for i, u := range uses {
		t := tableNamed(u.Table)
		schemas[i], tables[i] = t.Schema, t.Name
	}
	type found struct {
		Number int
		Table
	}
	q := pg.NewQuery("find tables", writtenTablesSQL, schemas, tables)
	all, err := pg.Collect(ctx, n.Catalog.Database, q, func(row pgx.CollectableRow) (f found, err error) {
		err = row.Scan(&f.Number, &f.Schema, &f.Name)
		return f, err
	})
	for _, f := range all {
		u := uses[f.Number-1]
		n.Add(f.Table, u.Rights)
		for column := range strings.FieldsSeq(u.Columns) {
			n.Find(Lookup{Table: f.Table, Columns: []string{column}})
		}
		if u.Removes {
			remove(f.Table)
		}
	}
	return err
}

// Find adds a look-up.
func (n *Needs) Find(l Lookup) { n.Lookups = append(n.Lookups, l) }

// firedSQL lists the effects of triggers on other tables with the rights of the role that fires
// them. It reads the text of their functions. tgtype has the bits 4 for INSERT, 8 for DELETE, 16
// for UPDATE. Triggers of partitions count as those of the table.
const firedSQL = `
SELECT n.nspname, c.relname, t.tgtype, lower(left(verb[1], 6)), wn.nspname, wc.relname,
  p.prosrc ~* 'on\s+conflict'
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid AND NOT p.prosecdef
JOIN pg_class c ON c.oid = coalesce(nullif(pg_partition_root(t.tgrelid), 0), t.tgrelid)
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL regexp_matches(p.prosrc,
  '\m(insert\s+into|update|delete\s+from)\s+(?:only\s+)?(?:"?([a-z_][a-z0-9_]*)"?\.)?"?([a-z_][a-z0-9_]*)', 'gi') verb
JOIN pg_class wc ON wc.relname = verb[3] AND wc.relkind IN ('r', 'p')
JOIN pg_namespace wn ON wn.oid = wc.relnamespace AND wn.nspname = coalesce(verb[2], current_schema())
WHERE ` + userTriggerSQL + ` AND t.tgenabled IN ('O', 'A')
GROUP BY 1, 2, 3, 4, 5, 6, 7`

// fired is one effect of a trigger.
type fired struct {
	on, to Table
	events int16
	rights Rights
}

// AddTriggers adds the effects of triggers on changed tables.
func (n *Needs) AddTriggers(ctx context.Context) error {
	n.Begin("")
	all, err := pg.Collect(ctx, n.Catalog.Database, pg.NewQuery("read triggers", firedSQL),
		func(row pgx.CollectableRow) (f fired, err error) {
			var verb string
			var conflict bool
			err = row.Scan(&f.on.Schema, &f.on.Name, &f.events, &verb, &f.to.Schema, &f.to.Name, &conflict)
			f.rights = map[string]Rights{
				"insert": MayInsert, "update": MaySelect | MayUpdate, "delete": MaySelect | MayDelete,
			}[verb]
			if conflict {
				f.rights |= MaySelect
			}
			return f, err
		})
	for changed := true; changed && err == nil; {
		changed = false
		for _, f := range all {
			if f.fires(n.Tables[f.on]) && n.Tables[f.to]|f.rights != n.Tables[f.to] {
				n.Add(f.to, f.rights)
				changed = true
			}
		}
	}
	return err
}

// fires reports whether the trigger fires for a role that changes its table with these rights.
func (f fired) fires(by Rights) bool {
	return by&MayInsert != 0 && f.events&4 != 0 || by&MayDelete != 0 && f.events&8 != 0 ||
		by&MayUpdate != 0 && f.events&16 != 0
}

// Grant is one or several rights on one object, or on all tables or sequences of a schema.
type Grant struct {
	Rights string
	// Kind is SCHEMA, TABLE or SEQUENCE, or, without a name, ALL TABLES IN SCHEMA or ALL SEQUENCES IN
	// SCHEMA.
	Kind  string
	Table Table
	// object is the name of its object, quoted where necessary.
	object string
}

// The kinds of objects.
const (
	onSchema       = "SCHEMA"
	onTable        = "TABLE"
	onSequence     = "SEQUENCE"
	onAllTables    = "ALL TABLES IN SCHEMA"
	onAllSequences = "ALL SEQUENCES IN SCHEMA"
)

// To returns the statement that grants it to a role, whose name is quoted where necessary.
func (g Grant) To(role string) string {
	object := g.object
	if g.Kind != onTable {
		object = g.Kind + " " + object
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s", g.Rights, object, role)
}

const quotedSQL = `
SELECT concat_ws('.', quote_ident(w.schema), nullif(quote_ident(w.name), '""'))
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (schema, name, n) ORDER BY w.n`

// Quoted returns a name as statements have it: quoted where necessary.
func (d Schema) Quoted(ctx context.Context, name string) (string, error) {
	names, err := quoted(ctx, d.db, []string{name}, []string{""})
	return strings.Join(names, ""), err
}

func quoted(ctx context.Context, d *pg.Database, schemas, names []string) ([]string, error) {
	return pg.Collect(ctx, d, pg.NewQuery("quote names", quotedSQL, schemas, names), pgx.RowTo[string])
}

// sequencesSQL reads the sequences from which defaults of tables take values.
const sequencesSQL = `
SELECT DISTINCT sn.nspname, s.relname
FROM unnest($1::text[], $2::text[]) AS w (schema, name)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
JOIN pg_attrdef d ON d.adrelid = c.oid
JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
JOIN pg_namespace sn ON sn.oid = s.relnamespace
ORDER BY 1, 2`

// Grants returns the grants for all these needs, and first those for the schema maintenance.
func (n *Needs) Grants(ctx context.Context) ([]Grant, error) {
	own := Table{Schema: "maintenance"}
	all := []Grant{
		{Rights: "USAGE", Kind: onSchema, Table: own},
		{Rights: "SELECT, INSERT, UPDATE, DELETE", Kind: onAllTables, Table: own},
		{Rights: "USAGE", Kind: onAllSequences, Table: own},
	}
	tables := slices.SortedFunc(maps.Keys(n.Tables), func(a, b Table) int {
		return strings.Compare(a.SQL(), b.SQL())
	})
	schemas := map[string]bool{}
	var grants []Grant
	var inserts [2][]string
	for _, t := range tables {
		if !schemas[t.Schema] {
			schemas[t.Schema] = true
			all = append(all, Grant{Rights: "USAGE", Kind: onSchema, Table: Table{Schema: t.Schema}})
		}
		grants = append(grants, Grant{Rights: n.Tables[t].String(), Kind: onTable, Table: t})
		if n.Tables[t]&MayInsert != 0 {
			inserts[0], inserts[1] = append(inserts[0], t.Schema), append(inserts[1], t.Name)
		}
	}
	q := pg.NewQuery("find sequences", sequencesSQL, inserts[0], inserts[1])
	sequences, err := pg.Collect(ctx, n.Catalog.Database, q, pgx.RowToStructByPos[Table])
	if err != nil {
		return nil, err
	}
	for _, s := range sequences {
		grants = append(grants, Grant{Rights: "USAGE", Kind: onSequence, Table: s})
	}
	all = append(all, grants...)
	var objects [2][]string
	for _, g := range all {
		objects[0], objects[1] = append(objects[0], g.Table.Schema), append(objects[1], g.Table.Name)
	}
	quoted, err := quoted(ctx, n.Catalog.Database, objects[0], objects[1])
	for i := range quoted {
		all[i].object = quoted[i]
	}
	return all, err
}
