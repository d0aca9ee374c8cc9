// Package deletion is what several workers' jobs have in common: the job delete_user, which inactive
// tokens, placeholders and groups queue, and the removal of projects in bounded steps.
//
// A user is deleted in two parts. This job decides, records that the removal has begun, removes personal
// projects and memberships, blocks the user and queues the ghost migration, which does the rest. Everything
// is decided before anything is destroyed; what has begun is only finished.
package deletion
