package lfk

import (
	"strings"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// lockTreesSQL runs before a statement on partitioned tables, in its transaction. A statement can
// wait for a lock while another transaction attaches a partition and moves rows into it from the
// default partition. The statement then misses those rows: PostgreSQL has planned it without the
// new partition. A child would lose a deletion, and a living parent would look deleted. The locks
// prevent both. The statement itself reports missing privileges.
const lockTreesSQL = `
DO 'BEGIN
  LOCK TABLE {quoted} IN ACCESS SHARE MODE;
EXCEPTION WHEN insufficient_privilege THEN NULL;
END'`

// lockTrees returns the SQL that locks partitioned tables and their partitions, "" for no tables.
func lockTrees(tables []string) string {
	if len(tables) == 0 {
		return ""
	}
	return stmt.Fill(lockTreesSQL, "{quoted}", strings.ReplaceAll(strings.Join(tables, ", "), "'", "''"))
}

// trees returns the partitioned ones of the parent's tables.
func (p *ParentTable) trees() (tables []string) {
	if p == nil {
		return nil
	}
	for _, r := range p.tables {
		if r.partitioned {
			tables = append(tables, r.sql)
		}
	}
	return tables
}
