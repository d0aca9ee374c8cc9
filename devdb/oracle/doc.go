// Package oracle is the test oracle of the deletion pipeline. It makes an estate at random, the
// rows of a small GitLab on the reference schema. From these rows alone it reports which rows must
// remain when all work is done.
//
//	generate.go     Generate: users, groups, projects, members, issues and notes from a seed
//	load.go         Estate.Load: writes them into databases
//	model.go        Estate.Rows: what must be left; Tables: the queries that read what is left
//	differences.go  Estate.Differences: the two compared
//	witness.go      Witness: triggers that count changed rows, to compare with the receipts
//
// It shares no code with caretaker, so that a mistake there is not made here again. Of its tables
// it reads the jobs (the reasons of refusals) and the receipts. A change of what a worker deletes
// changes model.go with it, by the worker's documentation, not by its code.
package oracle
