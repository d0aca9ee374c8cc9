// Package placeholder is the worker placeholder_user_cleanup: it counts an attempt for every
// placeholder user whose import's namespace is gone, and queues its deletion.
//
// Due are the rows of import_placeholder_user_details without a namespace, with fewer than
// max_attempts attempts, that were never attempted, or for the last time more than retry_period
// ago: eligibleForDeletionSQL. They are taken in the order of their ids.
//
// One batch is one transaction:
//
//  1. Up to batch_size rows behind the last id are claimed: attempts + 1, and the time of the
//     attempt is T, the start of the run.
//  2. For the row with index i in the run a job delete_placeholder_user is queued that starts at
//     T + i × interval. A user who has a waiting job gets no second one.
//  3. A warning is logged for each row whose last attempt this was.
//
// As soon as a page is claimed it is known where the next one begins, and with which index: that is
// claimed while the jobs of the first are inserted. Each page has a permit and a transaction of its
// own.
//
// Invariants: attempt and job exist both or neither; two runs at once count no row twice. Rows that
// others have locked are left for the next run. A failure ends the run; what is committed stays. The
// page behind one that fails may be committed: the next run begins at the first row again, and so
// finds those of the page that failed.
//
// The job checks, in one transaction, that the user is a placeholder that nothing refers to, queues
// the job delete_user and completes itself. A reference ends this attempt; the next one is the
// worker's.
package placeholder
