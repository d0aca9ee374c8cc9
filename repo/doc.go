// Package repo holds all SQL of caretaker and is the only package that knows the PostgreSQL driver.
//
// What it guarantees:
//
//   - An exported method is a whole step and a whole transaction. Nearly all are sent in one network round trip, so that
//     a process that is stopped in the middle leaves no transaction open. The few of several statements end by the
//     server's time-out for idle transactions.
//   - What writes takes a [fencing.Permit]: limits and a [fencing.Guard], without which nothing changes. That of a
//     run is its [fencing.Fence]: the lease row of that name, holder and epoch in the same database is
//     unexpired. The row stays locked until the commit, so a take-over cannot come between check and
//     commit. Otherwise the error is [dberr.ErrLeaseLost].
//   - The clock of the database decides; the host's clock is never read for a decision.
//   - Errors of the server are [*dberr.Error] values with SQLSTATE; a database that cannot be reached is [dberr.ErrUnreachable].
//   - No statement without a cap on its rows and its time.
package repo
