// Package loosefk is the worker loose_foreign_keys_cleanup: it
// deletes, nullifies or marks the rows that refer to deleted parents, and takes the parents' records off the queue.
//
// Due are the pending records of one database's queue whose consume_after has passed, of parents with definitions:
// partition by partition, the oldest first. Parents take turns, in an order drawn for each run, a batch each. A run takes
// what was due at its start, and what was recorded since, by the application or by its own deletions. It ends when
// nothing of that is left that it has not tried, or at a limit. What it has put off itself waits for the next one.
//
// One batch:
//
//  1. Up to batch_size records of one parent are loaded; records of the same key share one fate.
//  2. For each definition in file order, on each home of the child, the queue's own database last, one statement
//     handles the keys that are so far. Keys that still have rows are set aside; the others go on.
//  3. The records of keys that are complete for every definition are removed, with the last statement if it ran in the
//     queue's database, else in a transaction of their own.
//  4. The set-aside keys go on where they stopped, until none is left or a limit ends the run.
//  5. What is not complete: failed records are put off for longer each time and at last moved to
//     maintenance.dead_records; locked ones wait a minute; those of a parent with an absent child are held: put off like
//     failed ones, but never dead; those that a limit left are counted up.
//
// Invariants: a record goes only when no row that was visible then still refers to its key, in any home; a statement
// never changes more rows than are left of the run's limits; whatever is killed, the next run goes on.
package loosefk
