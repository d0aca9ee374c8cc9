// Package admin is `caretaker lfk`: it sets up, checks and repairs the loose foreign keys that package lfk
// cleans. Every command works on the configured databases, or on the one that the operator names. What
// changes in one database is one transaction. A database that does not answer is in the error, and the
// others are done.
//
// admin.go makes queues and triggers, lint*.go compares the definitions with the databases, adopt.go and
// revert.go turn a real foreign key into a loose one and back, dead.go and reused.go list and retry records,
// absent.go accepts child tables that no database has.
package admin
