// Package repo holds all SQL of caretaker. No package outside repo knows the PostgreSQL driver.
//
// Guarantees:
//
//   - An exported method is one whole step and one whole transaction. Nearly all methods send one
//     network round trip, so a process that stops in the middle leaves no transaction open. The
//     server's timeout for idle transactions ends the few methods of several statements.
//   - Every write takes a [fencing.Permit]: limits and a [fencing.Guard]. Without the guard nothing
//     changes. The guard of a run is its [fencing.Fence]. It holds while the lease row of that name,
//     holder and epoch in the same database is unexpired. The row stays locked until the commit, so
//     no take-over comes between check and commit. Otherwise the error is [dberr.ErrLeaseLost].
//   - The clock of the database decides. No decision reads the host's clock.
//   - Errors of the server are [*dberr.Error] values with SQLSTATE. The error of a database that
//     cannot be reached is [dberr.ErrUnreachable].
//   - Every statement has a cap on its rows and its time.
package repo
