package control

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Runs starts, follows and ends runs, in one database.
type Runs struct{ db *pg.Database }

// NewRuns is for packages of repo.
func NewRuns(db *pg.Database) Runs { return Runs{db} }

// Leases acquires, renews and releases leases, in one database.
type Leases struct{ db *pg.Database }

// NewLeases is for packages of repo.
func NewLeases(db *pg.Database) Leases { return Leases{db} }

// Fires records which scheduled runs were due and what became of them, in one database.
type Fires struct{ db *pg.Database }

// NewFires is for packages of repo.
func NewFires(db *pg.Database) Fires { return Fires{db} }

// Audit records who changed what, in one database.
type Audit struct{ db *pg.Database }

// NewAudit is for packages of repo.
func NewAudit(db *pg.Database) Audit { return Audit{db} }

// Receipts reads, checks and prunes receipts, in one database.
type Receipts struct{ db *pg.Database }

// NewReceipts is for packages of repo.
func NewReceipts(db *pg.Database) Receipts { return Receipts{db} }

// Flags reads and sets pauses and feature flags, in one database.
type Flags struct{ db *pg.Database }

// NewFlags is for packages of repo.
func NewFlags(db *pg.Database) Flags { return Flags{db} }

// History prunes what is old and reads figures, in one database.
type History struct{ db *pg.Database }

// NewHistory is for packages of repo.
func NewHistory(db *pg.Database) History { return History{db} }
