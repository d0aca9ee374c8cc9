// Package placeholder is the worker placeholder_user_cleanup. It counts an attempt for every
// placeholder user whose import's namespace no longer exists, and queues the deletion of the user.
//
// Rows of import_placeholder_user_details without a namespace and with fewer than max_attempts
// attempts are due (eligibleForDeletionSQL). The last attempt, if any, must be more than
// retry_period ago. They are taken in the order of their ids.
//
// One batch is one transaction:
//
//  1. Up to batch_size rows after the last id are claimed. Their attempts grow by 1, and the time
//     of the attempt is T, the start of the run.
//  2. For the row with index i in the run a job delete_placeholder_user is queued that starts at T
//     + i × interval. A user with a waiting job gets no second one.
//  3. A warning is logged for each row at its last attempt.
//
// Once a page is claimed, the start and the index of the next page are known. The next page is
// claimed while the jobs of the first are inserted. Each page has a permit and a transaction of its
// own.
//
// Invariants: attempt and job exist both or neither. Two parallel runs count no row twice. Rows
// locked by others remain for the next run. A failure ends the run, and its commits are kept. The
// page after a failed one may be committed. The next run starts at the first row again, and so
// finds the rows of the failed page.
//
// The job checks, in one transaction, that the user is a placeholder without references, queues the
// job delete_user and completes itself. A reference ends this attempt. The worker makes the next
// one.
package placeholder
