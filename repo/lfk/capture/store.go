package capture

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Capture reads and repairs the triggers that record deleted rows, in one database.
type Capture struct{ db *pg.Database }

// NewCapture returns the Capture of a database, for packages of repo.
func NewCapture(db *pg.Database) Capture { return Capture{db} }
