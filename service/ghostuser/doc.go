// Package ghostuser is the worker ghost_user_migration: for each user of the
// queue it gives the contributions to a ghost user, clears or deletes what else refers to the user, and deletes the user.
//
// Due are the queue's rows whose consume_after has passed, humans before all others, then by consume_after and id; at
// most limit of them in a run.
//
// One user:
//
//  1. The row is looked at again. A row without a user is removed; a user of a type that must not be deleted fails.
//  2. The ghost is the first of the user's organization; without one, one is created.
//  3. The lists of section 6 and the foreign keys to users are gone through in order, those lines that have rows, each
//     in bounded statements, in main, ci and sec.
//  4. A look at all of them confirms that nothing is left. Then the personal namespace is removed, and the user, behind a
//     last look while nobody can refer to the user by a foreign key: if that finds something, 3 is done again.
//
// Invariants: every statement commits by itself, so what was moved stays moved, and the next run finds only the rest;
// nothing is done for a user whose row is not due; the deadline is looked at before every statement.
//
// A user whose time is used up - half of the run's while others wait - or who has locked rows is deferred by 30 s, one
// who causes an error by 30 minutes. A lease lost, or a database that does not answer, fails the run and defers nobody.
package ghostuser
