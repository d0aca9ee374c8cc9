// Package run is the engine: it runs any worker.
//
// A [Worker] is a value: its name, its databases, the work of one run, and its backlog. A [Runner]
// has the workers and runs them. An [Execution] is one run in progress, and all that a worker gets.
// It has the time that decides what is due, the remaining time, and whether to stop. It also has
// permits to write, counts and limits.
//
//	RunBatch: of a request, or of a fire that is due by the clock of main
//	   │
//	  1. one statement reads the pause, the flags and the clock; the catalogue shows what is missing
//	  2. one records the run (state running), claims its fire, and takes its lease if that is in main
//	  3. else the lease is taken; and a fence row in every other database that it writes to
//	  4. execute, in a goroutine of its own, which no caller can end:
//	       the worker's Work   │ in parallel: the lease is renewed every third of its time to live,
//	                           │ progress is saved every second, a cancel or pause is read
//	  5. the lease is released, the end is recorded, then logged, traced and counted: once
//
// Guarantees:
//
//   - Two runs of one worker on one database never write at the same time. Every write transaction
//     checks the lease, in the database that it writes to (see [Execution.Permit]).
//   - A run belongs to the process, not to the caller. It ends by itself, at its limit, by
//     CancelRun, by a pause, by Shutdown, or when its lease is lost.
//   - A run ends as SUCCEEDED, FAILED, CANCELLED or SKIPPED. An error of the work fails it. A
//     [fault.StopError] cancels it or ends it early, and a [fault.SkippedError] skips it. Panics
//     are errors.
//   - A run whose process dies is closed as FAILED, LEASE_LOST, and reported, by the next process
//     that reads the runs.
//   - Committed work is kept and counted, and the next run continues.
//   - The clock of main decides what is due. The host's clock only waits.
package run
