package orphans

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Orphans finds rows whose parents are missing, in one database.
type Orphans struct{ db *pg.Database }

// NewOrphans returns the Orphans of a database, for packages of repo.
func NewOrphans(db *pg.Database) Orphans { return Orphans{db} }
