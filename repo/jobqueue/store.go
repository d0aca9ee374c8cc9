package jobqueue

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Jobs reads, cancels and retries the jobs of one database.
type Jobs struct{ db *pg.Database }

// NewJobs returns the jobs of a database, for packages of repo.
func NewJobs(db *pg.Database) Jobs { return Jobs{db} }
