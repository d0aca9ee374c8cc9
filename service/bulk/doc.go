// Package bulk changes and removes many rows in bounded statements, for any worker or job.
//
// A [Sweeper] changes or deletes rows of one table. A [Removal] removes rows with everything that
// refers to them. A [DryRun] counts their effects and writes nothing. [StatementSizes] learn, by
// table and action, how many rows a statement may have to stay within its time.
//
// Guarantees: a statement stays within its limit of rows and its time limit. It is a transaction of
// its own under a permit of its [run.Writer]: the fence of a run or the attempt of a job. Locked
// rows come last, are waited for once, then reported by an error that [IsLocked] detects. Rows that
// a trigger keeps are a [rowset.KeptError] that names it.
//
// A removal handles three kinds of dependants, first all tables that can prevent it. Through
// foreign keys with ON DELETE CASCADE it removes the child rows in the same way. It does not enter
// a table that is already being removed from. With SET NULL it clears the reference. Any other key
// must have no rows. Then come references by type and id, without a foreign key, and last the rows.
//
// A sweep has two forms of statement. The first batch selects its rows before it changes them, so
// that it knows which of them were kept. So does every batch that leaves out locked rows or reports
// values. A batch after a full one changes a range of the index without reading it first. The
// second form pays off: in benchmark (g), with 400,000 contributions, it takes 9.3 s of server CPU.
// The first form alone takes 10.3 s, and one UPDATE for each column 10.0 s.
package bulk
