// Package service is the API for the edges: runs, status, pauses, fires, jobs, flags, and the one
// list of workers.
//
// Package run is the engine that runs a worker, and package status reports what the workers do.
// Each worker has a package of its own, and uses leases, spans, metrics, records and pauses only
// through its [run.Execution]. Errors for callers come from package run, and from the packages of
// repo that it names.
package service
