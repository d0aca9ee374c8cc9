package protection

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Protections protects users and groups, in one database.
type Protections struct{ db *pg.Database }

// NewProtections returns the Protections of a database, for packages of repo.
func NewProtections(db *pg.Database) Protections { return Protections{db} }
