package rowset

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Sweeps finds rows in batches, in one database.
type Sweeps struct{ db *pg.Database }

// NewSweeps returns the Sweeps of a database, for packages of repo.
func NewSweeps(db *pg.Database) Sweeps { return Sweeps{db} }

// Outside lists and acknowledges paths outside the database, in one database.
type Outside struct{ db *pg.Database }

// NewOutside returns the Outside of a database, for packages of repo.
func NewOutside(db *pg.Database) Outside { return Outside{db} }
