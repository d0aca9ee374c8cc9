// Package deletion is common to the jobs of several workers. It contains the job delete_user, which
// inactive tokens, placeholders and groups queue. It also removes projects in bounded steps.
//
// A user is deleted in two parts. The job delete_user decides. It records the start of the removal,
// removes personal projects and memberships, and blocks the user. It queues the user for the worker
// ghost_user_migration, which does the remaining work.
//
// All decisions come before any deletion. A started removal is only finished, by this job or
// another one for the same user, whatever the checks would find by then.
package deletion
