// Package job runs deferred jobs. Workers queue them, each with the change that causes it, and they
// may take longer than a run.
//
// A [Kind] is a kind of job, as a value: the work of one attempt, and the worker whose pause holds
// it. A [Pool] has the kinds, runs attempts that the queue hands it, and lists jobs. One attempt:
//
//  1. A job is postponed while its worker or all workers are paused, or while main is over a limit
//     of its load. This uses up no attempt.
//  2. It runs in a trace of its own, which is linked to the span that queued it. Every transaction
//     that changes anything begins with the attempt's [fencing.Guard]: an attempt that was taken
//     for dead writes nothing more.
//  3. After 45 seconds, or when the process stops, it snoozes. Its work is kept, and the next
//     attempt continues.
//  4. It ends with an outcome and a typed reason, is logged once and counted. The queue retries an
//     error with a growing pause, up to 25 times, but not a refusal.
//
// Jobs are safe to run twice: the second time they find their work done.
package job
