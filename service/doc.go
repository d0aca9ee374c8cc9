// Package service is what the work is: one path for every trigger.
//
// What it guarantees:
//
//   - There is one way into a worker, launch: RunBatch and a fire of the schedule both lead to it. A run takes its
//     lease, is recorded, traced, counted, watched, and gives everything back, whatever happens in between. See runner.go.
//   - A worker is a value of type worker: what it does in one run, what waits for it, what it needs. It knows nothing
//     of leases, spans, metrics, records, pauses.
//   - A run belongs to the process, not to the caller: it ends by itself, by CancelRun, by a pause, or by Shutdown.
//   - Errors for callers are the ones of errors.go, and those of package repo that it names.
package service
