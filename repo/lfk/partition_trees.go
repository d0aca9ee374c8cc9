package lfk

import (
	"strings"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// lockTreesSQL comes before a statement on partitioned tables, in its transaction. A statement that
// waits for a lock, while another transaction attaches a partition and moves rows from the default
// partition into it, leaves those rows out: PostgreSQL has planned it without the new partition. For a
// child that is a lost deletion, and a living parent would look deleted. With the locks neither can
// happen. The statement itself says which privileges it lacks.
const lockTreesSQL = `
DO 'BEGIN
  LOCK TABLE {quoted} IN ACCESS SHARE MODE;
EXCEPTION WHEN insufficient_privilege THEN NULL;
END'`

// lockTrees returns what locks partitioned tables, named in SQL, and their partitions; "" for none.
func lockTrees(tables []string) string {
	if len(tables) == 0 {
		return ""
	}
	return stmt.Fill(lockTreesSQL, "{quoted}", strings.ReplaceAll(strings.Join(tables, ", "), "'", "''"))
}

// trees are the partitioned ones of the parent's tables.
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
