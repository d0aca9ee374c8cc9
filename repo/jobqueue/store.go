package jobqueue

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Jobs reads, cancels and retries jobs, in one database.
type Jobs struct{ db *pg.Database }

// NewJobs is for packages of repo.
func NewJobs(db *pg.Database) Jobs { return Jobs{db} }
