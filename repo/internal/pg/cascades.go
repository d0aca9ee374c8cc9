package pg

// JobCascade is what jobs do with rows of Child when rows of Parent are deleted to which they refer: they
// delete them. It is for what PostgreSQL does not know, or is not asked to do.
type JobCascade struct {
	Child, Column, Parent, ParentColumn string
	// OnlyColumn limits it to the rows in which that column is Only, in SQL; "": to none.
	OnlyColumn, Only string
	// Spared: the rows are not deleted. They have been given to another parent before, even where a
	// foreign key would cascade.
	Spared bool
	// queued: a job of its own deletes the row of Child. contains: Child is a part of Parent, which no
	// message has to explain.
	Queued, Contains bool
}
