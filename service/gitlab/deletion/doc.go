// Package deletion is what the jobs of several workers have in common: the job delete_user, which
// inactive tokens, placeholders and groups queue, and the removal of projects in bounded steps.
//
// A user is deleted in two parts. The job delete_user decides. It records that the removal has
// begun, removes personal projects and memberships, blocks the user and queues the user for the
// worker ghost_user_migration, which does the rest.
//
// Everything is decided before anything is destroyed. What has begun is only finished: by this job
// or another one for the same user, whatever the checks would say by then.
package deletion
