// Package admin is `caretaker lfk`: it sets up, checks and repairs the loose foreign keys that
// package lfk cleans. Every command uses the configured databases, or the one that the operator
// names. All changes in one database are one transaction. A database that does not answer is in the
// error, and the others are done.
//
// admin.go makes queues and triggers. lint*.go compares the definitions with the databases.
// adopt.go and revert.go turn a real foreign key into a loose one and back. dead.go and reused.go
// list and retry records. absent.go accepts child tables that no database has.
package admin
