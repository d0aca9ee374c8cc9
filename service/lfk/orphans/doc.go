// Package orphans is the worker orphan_audit. It searches the children of loose foreign keys for
// rows whose parent does not exist and has no record. Their parents were deleted before their table
// was tracked, or the application has inserted the rows afterwards. `caretaker lfk orphans` does
// the same manually.
//
// It never deletes anything. With fix it writes a record of each missing parent to the queue of the
// parent's database. The worker loose_foreign_keys_cleanup then follows the definition, with its
// limits, receipts and fences. Without fix it only counts.
//
// An audit checks each definition in each database that has its child, one after the other, in the
// order of the file. It may take several runs: maintenance.orphan_audits has the progress of each
// definition. When all are done the next run starts a new audit.
//
// One batch:
//
//  1. The next batch_size keys that the child refers to are read from its index, each once. For
//     children in main its read replica is used if there is one and it has replayed this worker's
//     last write. These keys are candidates. The next steps read primaries. NULLs, and rows that do
//     not meet the definition's conditions, are left out.
//  2. Keys that no database with the parent's table has are missing. Every configured database must
//     answer: else it is unknown which keys have a parent.
//  3. Keys with a waiting or dead record in the parent's queue are left out: they are no orphans
//     but pending work. A definition whose parent has more than 10,000 waiting records is left to
//     the next run.
//  4. Of the remaining keys, those count that still have rows in the primary which the definition
//     would change. Rows that update_column_to has marked do not.
//  5. With fix, a record of each is written in one fenced statement, which checks the parent's
//     table again. A parent that a transaction has inserted but not committed yet is not missing.
//     So the statement writes nothing before all transactions open at step 2 have ended.
//  6. The last key is saved.
//
// A run ends at max_runtime or, with fix, after max_records records, and the next one continues. A
// failed definition does not stop the others, but the run is then FAILED. If a run is killed
// between steps 5 and 6, the next run finds the keys again, and their records waiting.
package orphans
