// Package schedule starts the scheduled runs of the workers, each on one replica alone, and records
// the outcome of every fire.
//
// A fire is a moment at which a worker's schedule requests a run. maintenance.fires in main is the
// history: each fire has a row there, with its outcome. maintenance.schedules is the ledger: for
// each worker, the time up to which its fires are accounted for. The clock of main decides which
// fires are due, and a row decides which replica runs one. The clocks of the replicas only wait.
//
//  1. Every replica checks the ledger every few seconds, with one query for all workers. It waits
//     for a full minute that is about to begin. So a fire is late by milliseconds, whatever the
//     phase of the replica's clock.
//  2. One statement records missed fires: older than the grace, and not claimed.
//  3. One statement claims a fire: the newest that is due, or the newest of all if that was missed
//     and the worker catches up. So one run makes up for any number of missed fires. The statement
//     also records the run, so that no fire is claimed without a run. A fire of a paused worker is
//     claimed as skipped.
//  4. Both advance accounted_until, or lock its row, and change nothing if another replica has
//     advanced it since the ledger was read.
//
// Catch-up does not include a skipped fire, nor one whose run failed or whose process died: a run
// that has started counts.
//
// A replica uses a worker if the worker is enabled and configured there. Only a used worker has
// fires, figures and a row on the status page:
//
//  1. Replicas that use it create its ledger if it does not exist: earlier fires are neither missed
//     nor caught up. Every useInterval they record in it that it is used.
//  2. A ledger without such a record for 50 seconds ends. Replicas must have checked without a gap
//     for that time, which the ledger without a worker shows. While main is unreachable no replica
//     can record or check anything, so that time does not count.
//
// So replicas that use a worker never lose its ledger to others that do not, as long as one of them
// is running.
//
// A round is a fire of a worker that works all of its databases with due work. It works one after
// the other in the order of the rotation. Each gets a run of its own under its own lease. The first
// run is the run of the fire, and decides whether the fire has run. The others follow in the
// process that claimed the fire, and are not caught up.
package schedule
