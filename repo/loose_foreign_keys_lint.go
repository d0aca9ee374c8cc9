package repo

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Inspection is what `caretaker lfk lint` looks at in one database, read from one snapshot without changing anything.
type Inspection struct {
	Queue Queue
	// QueueFaults say how the queue differs from GitLab's.
	QueueFaults []string
	// ActiveMissing: records are sent to a partition that does not exist.
	ActiveMissing bool
	// Pending are the recorded table names that have pending records.
	Pending []string
	// Parents that are tables of the application schema here, by name.
	Parents map[string]InspectedParent
	// Children has an entry a definition, nil where its child has no home here.
	Children []*InspectedChild
	// ForeignKeys are the real ones to tables that the definitions name.
	ForeignKeys []InspectedForeignKey
	// Triggers are all that note deletions, or bear the name of one.
	Triggers []Trigger
	// OldFunctions are the names of trigger functions that an older version of this program has made.
	OldFunctions []string
}

// InspectedParent is a parent table and how its deletions are noted.
type InspectedParent struct {
	// PartitionOf names the table that it is a partition of; "": none.
	PartitionOf string
	// Relations are the table, then its partitions, level by level.
	Relations []InspectedRelation
	// Key is the column that is recorded, KeyType its type ("": there is no such column), KeyRight whether it is one
	// that can be recorded.
	Key, KeyType string
	KeyRight     bool
}

// InspectedRelation is a table or partition with its trigger.
type InspectedRelation struct {
	// Name with its schema.
	Name string
	// Trigger that does most of the work; nil: none.
	Trigger *Trigger
}

// Inspect reads all that lint asks of a database about these definitions.
func (d *Database) Inspect(ctx context.Context, keys []LooseForeignKey) (Inspection, error) {
	i := Inspection{Parents: map[string]InspectedParent{}}
	err := d.readOnly(ctx, "inspect loose foreign keys", func(tx pgx.Tx) (err error) {
		if err = d.inspectQueue(ctx, tx, &i); err != nil {
			return err
		}
		if i.Triggers, err = triggers(ctx, tx); err != nil {
			return err
		}
		homes, err := homes(ctx, tx, keys)
		if err != nil {
			return err
		}
		for _, k := range keys {
			if home, here := homes[k.Parent]; here && err == nil && i.Parents[k.Parent].Key == "" {
				i.Parents[k.Parent], err = inspectParent(ctx, tx, home, i.Triggers)
			}
		}
		if err == nil {
			i.Children, err = inspectChildren(ctx, tx, keys, homes)
		}
		if err == nil {
			i.ForeignKeys, err = inspectForeignKeys(ctx, tx, homes)
		}
		return err
	})
	return i, err
}

// queueIndexSQL: without this index a load of records takes seconds instead of milliseconds.
const queueIndexSQL = `
SELECT EXISTS (
  SELECT FROM pg_index i WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indisready
    AND pg_get_expr(i.indpred, i.indrelid) = '(status = 1)'
    AND ARRAY(SELECT a.attname::text FROM generate_series(0, 3) AS k (n)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n] ORDER BY k.n)
      = ARRAY['partition', 'fully_qualified_table_name', 'consume_after', 'id'])`

const pendingParentsSQL = `
SELECT DISTINCT pending.name
FROM unnest($1::bigint[]) AS leaf (number)
CROSS JOIN LATERAL (` + leafParentsSQL + `
  SELECT p.name FROM parents p WHERE p.name IS NOT NULL
) pending
ORDER BY pending.name`

func (d *Database) inspectQueue(ctx context.Context, tx pgx.Tx, i *Inspection) (err error) {
	i.Queue, i.QueueFaults, err = d.lookAtQueue(ctx, tx)
	if err != nil || !i.Queue.Exists || len(i.QueueFaults) > 0 {
		return err
	}
	old, err := oldFunctions(ctx, tx, i.Queue)
	if err != nil {
		return err
	}
	for _, f := range old {
		i.OldFunctions = append(i.OldFunctions, f.name)
	}
	i.ActiveMissing = i.Queue.ActiveMissing()
	var indexed bool
	if err := tx.QueryRow(ctx, queueIndexSQL, i.Queue.sql).Scan(&indexed); err != nil {
		return err
	}
	if !indexed {
		// Looking for what is pending would read it all.
		i.QueueFaults = append(i.QueueFaults,
			"it has no valid index (partition, fully_qualified_table_name, consume_after, id) WHERE status = 1")
		return nil
	}
	if i.Queue.HasDefault {
		others, err := tx.Query(ctx, i.Queue.othersSQL())
		if err != nil {
			return err
		}
		numbers, err := pgx.CollectRows(others, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		i.Queue.addPartitions(numbers)
	}
	rows, err := tx.Query(ctx, fill(pendingParentsSQL, "{queue}", i.Queue.sql), i.Queue.Partitions)
	if err != nil {
		return err
	}
	i.Pending, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// homesSQL: ordinary and partitioned tables of the application schema that can be written to.
const homesSQL = `
SELECT c.oid, n.nspname, c.relname, c.relkind::text, coalesce((
  SELECT root.relname::text FROM pg_class root WHERE root.oid = pg_partition_root(c.oid) AND root.oid <> c.oid), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
WHERE c.relname::text = ANY ($1::text[]) AND c.relkind IN ('r', 'p') AND NOT ` + protectedSQL

// homes finds the tables that definitions name, as children and as parents.
func homes(ctx context.Context, tx pgx.Tx, keys []LooseForeignKey) (map[string]relation, error) {
	names := []string{}
	for _, k := range keys {
		names = append(names, k.Table, k.Parent)
	}
	rows, err := tx.Query(ctx, homesSQL, names)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		err = row.Scan(&r.OID, &r.Schema, &r.Name, &r.Kind, &r.Parent)
		return r, err
	})
	byName := make(map[string]relation, len(found))
	for _, r := range found {
		byName[r.Name] = r
	}
	return byName, err
}

func inspectParent(ctx context.Context, tx pgx.Tx, home relation, existing []Trigger) (p InspectedParent, err error) {
	tree, err := partitionTree(ctx, tx, home.OID)
	if err != nil {
		return p, err
	}
	p.Key, p.PartitionOf = "id", home.Parent
	for _, rel := range slices.Backward(tree) {
		if rel.Inherited {
			continue
		}
		best := bestTrigger(rel, existing)
		if best != nil {
			if form, column := best.Form(); form != FormForeign {
				p.Key = column
			}
		}
		p.Relations = append(p.Relations, InspectedRelation{Name: rel.String(), Trigger: best})
	}
	slices.Reverse(p.Relations)
	key, err := readKeyColumn(ctx, tx, home.OID, p.Key)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	p.KeyType, p.KeyRight = key.kind, key.integer
	return p, err
}

// bestTrigger is the trigger of a table that comes nearest to noting its deletions always.
func bestTrigger(rel relation, existing []Trigger) (best *Trigger) {
	rank := func(t *Trigger) int {
		form, _ := t.Form()
		return int(form)*10 + map[string]int{"A": 2, "O": 1}[t.Fires]
	}
	for _, t := range existing {
		if t.OID == rel.OID && (best == nil || rank(&t) > rank(best)) {
			best = &t
		}
	}
	return best
}
