// Package token is the worker inactive_token_deletion: it finds the project bots whose
// tokens have all been dead for N days, or that have none, and queues the deletion of each.
//
// Due is every project bot that is not in the queue of the ghost migration yet. A pass is one walk
// over all bots in the order of their ids, with the rules of the moment at which it began. It is
// stored, and outlives the runs that work on it.
//
// One run:
//
//  1. The setting N is read. Null switches the worker off and drops an unfinished pass; an invalid
//     one fails the run.
//  2. An unfinished pass is continued, else one is opened: T is the start of the run, C is N times
//     24 hours earlier.
//  3. The next batch_size bots above the cursor are judged in one query. If max_queued users wait
//     for their deletion the run ends, with the continuation of 5. Where there is room for some
//     only, the range is smaller.
//  4. The jobs delete_user of the inactive bots, the cursor behind the range and the totals are
//     stored in one transaction.
//  5. If no bot has a higher id the pass is finished. Else, once max_runtime is over, the
//     transaction also queues the job continue_inactive_token_deletion, due continue_after later,
//     and the run ends. Else it goes back to 3.
//
// Invariants: cursor and jobs are stored both or neither, so a pass that is interrupted anywhere
// continues with the next range, and no bot has two jobs. A job may be worked long after its bot
// was judged: it looks at the tokens again. A range that takes too long is tried again in smaller
// parts. Any other failure ends the run, and the next run continues the pass.
package token
