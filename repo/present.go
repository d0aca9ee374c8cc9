package repo

import (
	"context"
	"slices"
)

// present are those of the columns that this database has, in the same order (schema.md section 9). A table that we may
// not read is an error that names it.
func (d *Database) present(ctx context.Context, columns []Reference) ([]Reference, error) {
	wanted := map[string][]string{}
	for _, c := range columns {
		wanted[c.Table] = append(wanted[c.Table], c.Column)
	}
	catalog, err := d.Tables(ctx, wanted)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(columns), func(c Reference) bool { return !catalog.Table(c.Table).Has(c.Column) }), nil
}

// MissingTable is the first of these tables that the application schema of this database lacks, "" if none does.
func (d *Database) MissingTable(ctx context.Context, tables ...string) (string, error) {
	wanted := map[string][]string{}
	for _, t := range tables {
		wanted[t] = nil
	}
	catalog, err := d.Tables(ctx, wanted)
	if err != nil {
		return "", err
	}
	for _, t := range tables {
		if catalog.Table(t) == nil {
			return t, nil
		}
	}
	return "", nil
}
