package catalog

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Schema reads the catalogue of one database.
type Schema struct{ db *pg.Database }

// NewSchema returns the schema of a database, for packages of repo.
func NewSchema(db *pg.Database) Schema { return Schema{db} }
