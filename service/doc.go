// Package service is what the edges call: runs, status, pauses, fires, jobs, flags, and the one list of
// workers.
//
// The engine that runs a worker is package run; what a worker does is in a package of its own. A worker
// touches leases, spans, metrics, records and pauses through its [run.Execution] only. Errors for callers
// are those of package run, and those of package repo that it names.
package service
