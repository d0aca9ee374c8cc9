// Package schedule starts the runs of the workers' schedules, each on one replica alone, and keeps
// on record what became of every fire.
//
// A fire is a moment at which a worker's schedule wants a run. maintenance.fires of main is their
// history: each has a row there, with its outcome. maintenance.schedules is the ledger: for each
// worker, up to when its fires are accounted for. The clock of main decides what is due and a row who
// runs it; the clocks of the replicas only wait.
//
//  1. Every replica checks the ledger every few seconds, with one query for all workers. It waits
//     for a full minute that is about to begin, so that a fire is late by milliseconds, whatever
//     the phase of the replica's clock.
//  2. One statement records what was missed: fires older than the grace that nobody has claimed.
//  3. One statement claims a fire: the newest that is due, or else the newest of all if it was
//     missed and the worker catches up. So however many were missed, one run makes up for them.
//     It records the run of the fire in the same moment, so that no fire is claimed without a run.
//     What must not run, because the worker is paused, is claimed as skipped.
//  4. Both advance accounted_until, or lock its row, and change nothing if another replica has
//     advanced it since the ledger was read.
//
// A fire that was skipped was decided about: it is not caught up. Nor is one whose run has failed,
// or whose process has died: a run that has begun has run.
//
// A worker is used by a replica on which it is enabled and configured. Only a worker that is used
// has fires, figures and a row on the status page:
//
//  1. Replicas that use it begin its ledger if there is none: nothing before that was missed, and
//     nothing is caught up. Every useInterval they record in it that it is used.
//  2. A ledger in which no replica has recorded that for 50 seconds ends, if replicas have checked
//     without a gap for so long: that is in a ledger without a worker. While main is away no
//     replica can record or check anything, so that time does not count.
//
// So replicas that use a worker never lose its ledger to others that do not, as long as one of them
// is at work.
//
// A round is a fire of a worker that works all of its databases: those that have something due, one
// after the other in the order of the rotation, each in a run of its own under its own lease. The
// first run is the fire's, which decides whether the fire has run. The others follow it in the
// process that has claimed the fire, and are not made up for.
package schedule
