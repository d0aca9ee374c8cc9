// Package lfk is the worker loose_foreign_keys_cleanup. It deletes, nullifies or marks the rows
// that refer to deleted parents, and removes the parents' records from the queue.
//
// Due are the pending records of one database's queue whose consume_after has passed, of parents
// with definitions: partition by partition, oldest first. Parents take turns, in an order drawn for
// each run, one batch each. A run takes the records due at its start, and those recorded since by
// the application or by its own deletions. It ends when it has tried all of them, or at a limit.
// Records that it has postponed itself wait for the next run.
//
// One batch, of which two run in parallel:
//
//  1. Up to batch_size records of one parent are loaded, or up to 2,000 if they are likely to fit
//     under the caps of the statements. Records of the same key are treated as one (loader.go).
//  2. The tasks are the definitions in file order. Each is done in every database that has the
//     child table, in the queue's own database last. For each task one statement handles the keys
//     that have reached it (batch.go, statement.go). It takes all rows of all keys if they fit
//     under its cap. If the cap has shrunk since the load, the keys are split. Otherwise it takes a
//     share of each key: keys with remaining rows are set aside, and the others continue. It counts
//     the rows first, unless they are likely to fit and nothing can keep a row without an error. If
//     they then do not fit, or take too long, nothing is changed, and the next statements count. It
//     waits for no locks, except once for a second where rows stay locked. A statement that fails
//     is halved by keys until the fault is isolated (isolate.go). A database that does not answer
//     is assumed to have the children of its last answer to any server, or all without such an
//     answer. Its tasks fail (places.go).
//  3. The records of keys that are complete for every definition are removed. The last statement
//     does so if it ran in the queue's database, else a transaction of its own.
//  4. The set-aside keys continue where they stopped, until none is left or a limit ends the run.
//  5. Incomplete records are postponed: failed ones for longer each time, until they are moved to
//     maintenance.dead_records, and locked ones for a minute. Those of a parent with an absent
//     child are held: postponed like failed ones, but never dead. Those left by a limit are counted
//     up.
//
// Invariants: a record is removed only when no row that was visible then still refers to its key,
// in any database. A statement never changes more rows than the run's limits allow. The lease
// fences every write, in the database that it changes. After any kill, the next run continues.
//
// worker.go has the configuration, start.go the work before the first batch, and places.go the
// places of the children. run.go has the loops and limits, loader.go the order of the batches, and
// batch.go the steps of a batch. statement.go has a statement, isolate.go its failures, and
// outcome.go the run's report. status.go has the worker's status between runs, and untracked.go the
// parents whose deletions are not recorded. dry_run.go has the count without changes.
// definitions.go reads the definitions file, entry.go one entry, and definitions_edit.go changes
// it. check.go compares the definitions with the databases, for the status and for `caretaker lfk
// lint`. The commands are package admin.
package lfk
