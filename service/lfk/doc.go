// Package lfk is the worker loose_foreign_keys_cleanup: it deletes, nullifies or marks the rows
// that refer to deleted parents, and takes the parents' records off the queue.
//
// Due are the pending records of one database's queue whose consume_after has passed, of parents
// with definitions: partition by partition, the oldest first. Parents take turns, in an order drawn
// for each run, a batch each. A run takes what was due at its start, and what was recorded since,
// by the application or by its own deletions. It ends when nothing of that is left that it has not
// tried, or at a limit. What it has postponed itself waits for the next one.
//
// One batch; two are worked side by side:
//
//  1. Up to batch_size records of one parent are loaded, or up to 2,000 if they are likely to fit
//     under the caps of the statements; records of the same key are treated as one (loader.go).
//  2. The tasks are the definitions in file order, each on every home of its child (a database that
//     has the child table), the queue's own database last. For each task one statement handles the
//     keys that have got so far (batch.go, statement.go). It takes all rows of all keys if they fit
//     under its cap, else a share of each key: keys that still have rows are set aside, the others
//     go on. It counts the rows first, unless they are likely to fit and nothing can keep a row
//     without an error. If they then do not fit, or take too long, nothing is changed, and they are
//     counted, here and for the rest of the run. It waits for no locks, except once for a second where rows stay locked. A statement that fails is
//     halved by keys until the fault is alone (isolate.go). A database that does not answer is
//     assumed to have the children that it had when it last answered a run of any server, or all if
//     it never did: its tasks fail (homes.go).
//  3. The records of keys that are complete for every definition are removed, with the last
//     statement if it ran in the queue's database, else in a transaction of their own.
//  4. The set-aside keys go on where they stopped, until none is left or a limit ends the run.
//  5. What is not complete is postponed: failed records for longer each time, until they are moved
//     to maintenance.dead_records; locked ones for a minute. Those of a parent with an absent child
//     are held: postponed like failed ones, but never dead. Those that a limit left are counted up.
//
// Invariants: a record goes only when no row that was visible then still refers to its key, in any
// home. A statement never changes more rows than are left of the run's limits. Every write is
// fenced by the lease, in the database it goes to. Whatever is killed, the next run goes on.
//
// Where what is: worker.go has the configuration, start.go what a run finds out before its first
// batch, homes.go where the children are, run.go the loops and limits, loader.go the order of the batches, batch.go the steps of one,
// statement.go a statement, isolate.go what follows when it fails, outcome.go what a run reports,
// status.go what the worker's status says between runs, untracked.go which parents it names because their
// deletions are not recorded, dry_run.go the count without changes.
// definitions.go reads the definitions file, entry.go one entry of it, definitions_edit.go changes it; check.go
// compares the definitions with what the databases have, for the status and for `caretaker lfk lint`. The
// commands are package admin.
package lfk
