package lfk

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Queue reads and changes records of deleted rows, in one database.
type Queue struct{ db *pg.Database }

// NewQueue returns the Queue of a database, for packages of repo.
func NewQueue(db *pg.Database) Queue { return Queue{db} }

// Children reads which tables refer to deleted rows, in one database.
type Children struct{ db *pg.Database }

// NewChildren returns the Children of a database, for packages of repo.
func NewChildren(db *pg.Database) Children { return Children{db} }
