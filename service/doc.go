// Package service is what the edges call: runs, status, pauses, fires, jobs, flags, and the one list of
// workers.
//
// The engine that runs a worker is package run; what a worker does is in the package, or the files, of
// its name. A worker knows nothing of leases, spans, metrics, records and pauses. Errors for callers are
// those of package run, and those of package repo that it names.
package service
