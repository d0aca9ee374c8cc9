// Package adjournedgroup is the worker adjourned_group_deletion: it queues
// the destruction of groups whose time is up, or restores them.
//
// Due are the groups marked, in either store, on a date at or before the cut-off: the UTC date of T minus the setting
// deletion_adjourned_period, in order of their ids; and those whose removal has begun.
//
// One run:
//
//  1. T is the start of the run by main's clock; the setting N is read. An invalid one fails the run.
//  2. Page by page each due group is decided about, with three statements a page: its user exists and may remove it,
//     destruction; the user may not, restore; there is no user, held. What has begun is destruction in any case.
//  3. Rows of the stores that make no sense are named, while both are as they were found.
//  4. Groups below one that goes are skipped, once the job of that one is in the queue. The others have positions, in
//     order of their ids, whatever becomes of them.
//  5. Each group has a transaction of its own: its job, starting at T + position × interval, or its restore.
//  6. Groups that look marked but are in no store are held.
//  7. What is recorded of the removal of groups that somebody else has deleted is forgotten.
//
// Invariants: a group is never both queued and restored by one run; nothing is deleted here. What fails is rolled back,
// logged and counted, stops no other group, and is looked at again by the next run. A run keeps in memory what it
// decided, about 100 bytes a due group.
package adjournedgroup
