package pg

// JobCascade is a deletion by jobs: when rows of Parent are deleted, jobs delete the rows of Child
// that refer to them. It is for deletions that PostgreSQL does not know, or is not asked to do.
type JobCascade struct {
	Child, Column, Parent, ParentColumn string
	// OnlyColumn limits the deletion to rows in which that column is Only, in SQL. "" means no limit.
	OnlyColumn, Only string
	// Spared: the rows are not deleted. They have been moved to another parent before, even where a
	// foreign key would cascade.
	Spared bool
	// Queued: a separate job deletes the row of Child. Contains: Child is a part of Parent, which
	// needs no explanation in messages.
	Queued, Contains bool
}
