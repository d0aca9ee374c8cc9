// Package orphans is the worker orphan_audit: it looks for rows of the children of loose foreign
// keys whose parent is gone, although no record says so. Their parents were deleted before their
// table was tracked, or the application has inserted the rows afterwards. `caretaker lfk orphans`
// does the same by hand.
//
// It never deletes anything. With fix it puts a record of each missing parent into the queue of the
// parent's database; the worker loose_foreign_keys_cleanup then does what the definition says, with
// its limits, receipts and fences. Without fix it only counts.
//
// An audit looks at each definition in each database that has its child, one after the other, in the
// order of the file. It may take several runs: where each definition has got is kept in
// maintenance.orphan_audits. When all are done the next run begins a new audit.
//
// One batch:
//
//  1. The next batch_size keys that the child refers to are read from its index, each once: those of
//     children in main on its read replica if there is one and it has replayed this worker's last
//     write. They are candidates; what follows is read on primaries. NULLs, and rows that
//     do not meet the definition's conditions, are left out.
//  2. Those that no home of the parent has are missing. A home is a database that has the table.
//     Every configured database must answer: else it is unknown which keys have a parent.
//  3. Keys whose record waits in the parent's queue, or is dead, are left out: they are no orphans
//     but work to do. A definition whose parent has more than 10,000 waiting records is left to the
//     next run.
//  4. Of what is left, those count that still have rows which the definition would change, by the
//     primary. Rows that update_column_to has marked do not.
//  5. With fix, a record of each is written in one fenced statement, which asks the parent's table
//     again. A parent that a transaction has inserted but not committed yet is not missing: the
//     statement writes nothing before all transactions of the time of step 2 have ended.
//  6. The last key is saved.
//
// A run ends at max_runtime or, with fix, after max_records records; the next one goes on. What one
// definition fails with does not keep the others from being looked at; the run is then FAILED. Killed
// between steps 5 and 6, the next run finds the keys again, and their records waiting.
package orphans
