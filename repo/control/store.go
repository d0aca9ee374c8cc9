package control

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Runs starts, follows and ends runs in one database.
type Runs struct{ db *pg.Database }

// NewRuns returns the runs of a database, for packages of repo.
func NewRuns(db *pg.Database) Runs { return Runs{db} }

// Leases acquires, renews and releases leases in one database.
type Leases struct{ db *pg.Database }

// NewLeases returns the leases of a database, for packages of repo.
func NewLeases(db *pg.Database) Leases { return Leases{db} }

// Fires records in one database which scheduled runs were due, and their outcomes.
type Fires struct{ db *pg.Database }

// NewFires returns the fires of a database, for packages of repo.
func NewFires(db *pg.Database) Fires { return Fires{db} }

// Audit records in one database who changed what.
type Audit struct{ db *pg.Database }

// NewAudit returns the audit of a database, for packages of repo.
func NewAudit(db *pg.Database) Audit { return Audit{db} }

// Receipts reads, checks and prunes receipts in one database.
type Receipts struct{ db *pg.Database }

// NewReceipts returns the receipts of a database, for packages of repo.
func NewReceipts(db *pg.Database) Receipts { return Receipts{db} }

// Flags reads and sets pauses and feature flags in one database.
type Flags struct{ db *pg.Database }

// NewFlags returns the flags of a database, for packages of repo.
func NewFlags(db *pg.Database) Flags { return Flags{db} }

// History prunes old records and reads figures in one database.
type History struct{ db *pg.Database }

// NewHistory returns the history of a database, for packages of repo.
func NewHistory(db *pg.Database) History { return History{db} }
