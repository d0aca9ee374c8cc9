package lfk

import (
	"context"
	"slices"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
	"github.com/caretaker-go/caretaker/service/run"
)

// A server that read its file before a definition was written does not know the definition. If its
// foreign key has been dropped since, such a server would remove records and leave the children. So
// a run skips the records of a parent while the definition of one of its adopted keys is missing.

// leftText reports the adopted keys that a server does not know, and what to do.
func leftText(keys []string) string {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	return "this server's definitions file has no definitions of the adopted foreign keys " + format.List(keys) +
		": add the definitions to the file and send SIGHUP to the server, or run `caretaker lfk revert`"
}

// reportMissingDefinitions adds to the run's reason that due records are skipped.
func (c *cleanup) reportMissingDefinitions(missing map[string]string, due []string) {
	var keys []string
	for _, parent := range due {
		if key := missing[parent]; key != "" {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		text := "records are skipped, because " + leftText(keys)
		c.x.Report(func(r *run.Run) { r.Reason = format.Join(r.Reason, text) })
	}
}

// missingDefinitionsRemark names the adopted keys that keep due records of a database.
func (k *worker) missingDefinitionsRemark(
	ctx context.Context, d *repo.Database, schema string, due []string,
) []string {
	adopted, _ := d.Capture.AdoptedKeys(ctx)
	defined := k.LooseForeignKeys()
	var keys []string
	for _, a := range adopted {
		if slices.Contains(due, a.RecordedParent()) && StandsFor(defined, schema, a) == nil {
			keys = append(keys, a.Named())
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return []string{"records on " + d.Name + " are skipped, because " + leftText(keys)}
}

// missingDefinitions returns the recorded names of parents with adopted keys that have no
// definition here, with these keys as the definitions would have them.
func (c *cleanup) missingDefinitions(ctx context.Context) (map[string]string, error) {
	adopted, err := c.x.Database.Capture.AdoptedKeys(ctx)
	missing := map[string]string{}
	for _, a := range adopted {
		if parent := a.RecordedParent(); StandsFor(c.keys, c.queue.Schema, a) == nil {
			missing[parent] = a.Named()
			c.x.Log.WarnContext(ctx, "adopted foreign key without definition, records kept",
				"foreign_key", missing[parent], "parent", parent)
		}
	}
	return missing, err
}

// StandsFor returns the definition that replaces a foreign key: without conditions, and with the
// same pairs of columns, or nil. schema is the application's.
func StandsFor(
	keys []lfk.Definition, schema string, key capture.AdoptedKey,
) *lfk.Definition {
	child := catalog.Table{Schema: key.Schema, Name: key.Table}.Recorded(schema)
	parent := catalog.Table{Schema: key.ParentSchema, Name: key.Parent}.Recorded(schema)
	at := slices.IndexFunc(keys, func(k lfk.Definition) bool {
		return catalog.RecordedName(k.Table, schema) == child &&
			catalog.RecordedName(k.Parent, schema) == parent && len(k.Conditions) == 0 && samePairs(k, key)
	})
	if at < 0 {
		return nil
	}
	found := keys[at]
	return &found
}

// samePairs reports whether each column of a definition refers to the same column as in a foreign
// key. A definition without key refers to the recorded columns: an adoption has ensured that these
// are the columns of the foreign key, in their order.
func samePairs(k lfk.Definition, key capture.AdoptedKey) bool {
	parents := key.ParentColumns()
	to := k.Key
	if to == nil {
		to = parents
	}
	if len(k.Columns) != len(key.Columns) || len(to) != len(key.Columns) ||
		len(parents) != len(key.Columns) {
		return false
	}
	for i, column := range key.Columns {
		at := slices.Index(k.Columns, column)
		if at < 0 || to[at] != parents[i] {
			return false
		}
	}
	return true
}
