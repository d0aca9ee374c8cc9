// Package token is the worker inactive_token_deletion. It finds the project bots whose tokens have
// all been inactive for N days, or that have none, and queues the deletion of each.
//
// Due is every project bot that is not in the queue of the ghost migration yet. A pass is one walk
// over all bots in the order of their ids, with the rules of the moment at which it started. It is
// stored, and outlives its runs.
//
// One run:
//
//  1. The setting N is read. Null switches the worker off and drops an unfinished pass. An invalid
//     setting fails the run.
//  2. An unfinished pass is continued. Else one is opened: T is the start of the run, C is N times
//     24 hours earlier.
//  3. The next batch_size bots above the cursor are judged in one query. If max_queued users wait
//     for their deletion the run ends, with the continuation of 5. With room for fewer, the range
//     is smaller.
//  4. One transaction stores the jobs delete_user of the inactive bots, the cursor after the range
//     and the totals.
//  5. If no bot has a higher id the pass is finished. Else, once max_runtime is over, the
//     transaction also queues the job continue_inactive_token_deletion, due continue_after later,
//     and the run ends. Else it returns to 3.
//
// Invariants: cursor and jobs are stored both or neither. So a pass continues with the next range
// after any interruption, and no bot has two jobs. A job may run long after its bot was judged: it
// checks the tokens again. A range that takes too long is retried in smaller parts. Any other
// failure ends the run, and the next run continues the pass.
package token
