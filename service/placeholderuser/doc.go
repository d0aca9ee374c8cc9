// Package placeholderuser is the worker placeholder_user_cleanup: it
// counts an attempt for every placeholder user whose import's namespace is gone, and queues its deletion.
//
// Due are the rows of import_placeholder_user_details without a namespace, with fewer than max_attempts attempts, of
// which the last is longer ago than retry_period, or that were never attempted: the query eligible_for_deletion. They
// are taken in the order of their ids.
//
// One batch is one transaction:
//
//  1. up to batch_size rows behind the last id are claimed: attempts + 1, the time of the attempt is the run's T;
//  2. for the row with index i in the run a job delete_placeholder_user is queued that starts at T + i × interval; a
//     user who has a waiting job gets no second one;
//  3. a warning is logged for each row that this was the last attempt of.
//
// Invariants: attempt and job exist both or neither; two runs at once count no row twice. Rows that others have locked
// wait for the next run. A failure ends the run; what is committed stays.
package placeholderuser
