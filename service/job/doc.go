// Package job works deferred jobs: those that workers queue, each with the change that causes it, and that
// may take longer than a run.
//
// A [Kind] is a kind of job, as a value: what one attempt does, and with the pause of which worker it waits.
// A [Pool] has the kinds, works attempts that the queue hands it, and lists jobs. One attempt:
//
//  1. A job is postponed, without using up an attempt, while its worker or all workers are paused, or while
//     main is over a limit of its load.
//  2. It works in a trace of its own, which is linked to the span that queued it. Every transaction that
//     changes anything begins with the attempt's [repo.Guard]: one that was taken for dead writes nothing more.
//  3. After 45 seconds, or when the process stops, it snoozes; what is done stays, the next attempt goes on.
//  4. It ends with an outcome and a typed reason, is logged once and counted. An error is retried by the
//     queue, with a growing pause, up to 25 times; one that was refused is not.
//
// Jobs are safe to run twice: whatever they do finds its work done.
package job
