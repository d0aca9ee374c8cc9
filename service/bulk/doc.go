// Package bulk changes and removes many rows in bounded statements, for whatever worker or job.
//
// A [Sweeper] changes or deletes rows of one table. A [Removal] removes rows with everything that
// refers to them. A [DryRun] counts what they would do and writes nothing. [StatementSizes] learn,
// by table and action, how many rows a statement may have to stay within its time.
//
// What it guarantees: a statement takes no more rows than it may, ends within its time, and is a
// transaction of its own under a permit of its [run.Writer]: the fence of a run or the attempt of a
// job. Rows that others have locked are left until the last, waited for once, then reported by an
// error that [IsLocked] knows. Rows that a trigger keeps are a [repo.KeptError] that names it.
//
// A removal goes through three kinds of dependants, first all tables that can forbid it. By foreign
// keys with ON DELETE CASCADE it removes the child rows in the same way; a table that is being
// removed from already is not entered again. With SET NULL it clears the reference. Any other key
// must have no rows. Then come references by type and id, without a foreign key, and last the rows.
//
// A sweep has two forms of statement. The first batch, and every batch that leaves out locked rows
// or reports values, picks its rows before it changes them, so that it knows which of them were
// kept. A batch behind a full one changes a range of the index without reading it first. The second
// form is worth having: in benchmark (g), with 400,000 contributions, it takes 9.3 s of server CPU
// where the first alone takes 10.3 s and one UPDATE for each column 10.0 s.
package bulk
