// Package run is the engine: how a worker is run, whatever it does.
//
// A [Worker] is a value: its name, its databases, what it does in one run, what waits for it. A
// [Runner] has the workers and runs them. An [Execution] is one run at work, and all that a worker is
// handed: the time that is due, the time that is left, whether to stop, permits to write,
// counts and limits.
//
//	RunBatch: of a request, or of a fire that is due by the clock of main
//	   │
//	  1. one statement reads the pause, the flags and the clock; the catalogue says what is missing
//	  2. one records the run (state running), claims its fire, and takes its lease if that is in main
//	  3. else the lease is taken; and a fence row in every other database that it writes to
//	  4. execute, in a goroutine of its own, which no caller can end:
//	       the worker's Work   │ beside it: the lease is renewed every third of its time to live,
//	                           │ progress is saved every second, a cancel or pause is heard
//	  5. the lease is released, the end is recorded, then logged, traced and counted: once
//
// What it guarantees:
//
//   - Two runs of one worker on one database never write at the same time. Every write transaction
//     checks, in the database that it writes to, that the lease is still held (see [Execution.Permit]).
//   - A run belongs to the process, not to the caller: it ends by itself, at its limit, by CancelRun, by
//     a pause, by Shutdown, or when its lease is lost.
//   - A run ends as SUCCEEDED, FAILED, CANCELLED or SKIPPED. An error of the work fails it; a [fault.StopError]
//     cancels it or ends it early; a [fault.SkippedError] skips it. Panics are errors.
//   - A run whose process dies is closed as FAILED, LEASE_LOST, by any other process that looks, and
//     reported by that one.
//   - What was committed stays, is counted, and the next run goes on.
//   - The clock of main decides what is due; ours only waits.
package run
