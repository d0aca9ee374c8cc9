package admin

import "github.com/caretaker-go/caretaker/repo/catalog"

// ForeignKeysOf finds foreign keys to the tables of these trees.
func ForeignKeysOf(keys []catalog.ForeignKey, tables ...[]catalog.Table) []ForeignKey {
	of := trees{}
	for i, tree := range tables {
		for _, t := range tree {
			of[uint32(i)] = append(of[uint32(i)], relation{Table: t})
		}
	}
	return foreignKeysOf(keys, of)
}
