// Package group is the worker adjourned_group_deletion, and its job destroy_group. A group is not
// deleted at once: the application marks it and keeps it for some days, so that it can be restored.
// The worker finds the groups whose time is over. It queues their destruction, or restores those
// that the user who marked them may no longer delete. docs/reference/workers/adjourned_group_deletion.md is
// for operators.
//
// # Due groups
//
// A mark is in one of two stores, or in both: a row of group_deletion_schedules, or
// namespace_details.deletion_scheduled_at. Groups marked on or before the cut-off are due, and all
// groups whose removal has started. The cut-off is the UTC date of T minus the setting
// deletion_adjourned_period. They are worked in the order of their ids.
//
// # One run
//
//  1. T is the start of the run by main's clock. The setting is read. An invalid one fails the run.
//  2. The worker decides page by page about each due group, with three statements a page. If the
//     user may remove the group, it is destroyed. Otherwise it is restored. If the user does not
//     exist, it is held. A group whose removal has started is destroyed in any case.
//  3. Marks that differ between the stores are logged, before a restore deletes both.
//  4. A group below one to be destroyed is skipped, once the job of that one is in the queue. Each
//     other group has a position in the order of ids, with any outcome.
//  5. Each group gets its outcome in a transaction of its own: a job that starts at T + position ×
//     interval, or its restore.
//  6. Groups that look marked, by their state or path, but are in no store are held.
//  7. The records of removals whose group was deleted by others are deleted.
//
// No run both queues and restores a group, and none deletes one.
//
// # Limits
//
// A page has batch_size groups. A run has no time limit, a dry run a minute. A run keeps its
// decisions in memory, about 100 bytes per due group.
//
// # Failure
//
// A failure of one group is rolled back, logged and counted. It stops no other group, and the next
// run retries it. A lost lease or an unreachable database fails the run.
//
// A dry run tries each job and each restore in a transaction that it rolls back. No other way finds
// those that would fail.
//
// The design of the job is the comment of destroyGroup.
package group
