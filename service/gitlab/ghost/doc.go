// Package ghost is the worker ghost_user_migration. Deleting a user must not delete content that
// others still read. So users to be deleted are in a queue, the table ghost_user_migrations. For
// each of them the worker gives the contributions to a ghost user, clears or deletes all other
// references, and finally deletes the user. docs/reference/workers/ghost_user_migration.md is for operators.
//
// # Due rows
//
// Rows of the queue whose consume_after had passed when the run started: humans before all others,
// then by consume_after, then by id. A run takes at most limit of them and works for max_runtime.
//
// # One user
//
//  1. The row is read again. If it is no longer due, nothing happens. If its user does not exist,
//     the row is removed. A user of a type that must not be deleted fails (INTERNAL_USER). A
//     protected user is postponed before any change. Whether the user is blocked does not matter:
//     the row of the queue decides.
//  2. The ghost is the first one of the user's organization. If none exists, the worker creates
//     one.
//  3. A probe finds the columns of main, ci and sec that still refer to the user. Those columns are
//     worked in order: first those of the lists in lists.go, then the foreign keys to users that no
//     list names. Each statement changes a bounded number of rows and commits by itself. The step
//     ends when a probe finds nothing.
//  4. The personal namespace is removed, with its dependants. A project in it fails the user
//     (PERSONAL_PROJECTS).
//  5. One transaction locks the user's row, probes all columns once more, and deletes the user and
//     the row of the queue. If that probe finds rows committed meanwhile, nothing is deleted, and
//     the work continues with step 3.
//
// The moves of a killed run are kept: the next run finds only the remaining rows.
//
// # Limits
//
// Before every statement the worker checks whether the run must stop or the user's time is over.
// While other rows wait, a user gets half of the run's remaining time, but at least a second.
//
// # Failure
//
//   - A user whose time is over, or with rows locked by others, is deferred by 30 seconds. All of
//     the user's other rows are worked before that.
//   - An error of a single user postpones that user by 30 minutes. The run continues, and succeeds.
//   - A lost lease, or a database that does not answer, fails the run. No row of the queue changes.
//
// A dry run counts the same rows in the same order and writes nothing.
package ghost
