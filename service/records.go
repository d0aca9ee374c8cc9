package service

import (
	"context"
	"errors"

	lfkadmin "github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Records lists the records of a database, or of all (""): see [admin.Admin.Records].
func (s *Service) Records(
	ctx context.Context, database string, f admin.RecordFilter,
) (records []admin.Record, unread []string, err error) {
	return admin.Admin{Databases: s.Databases, Only: database}.Records(ctx, f)
}

// Decisions on records.
const (
	DecisionRetry = "retry"
	DecisionClean = "clean"
	DecisionKeep  = "keep"
)

// AllTables selects dead records of all tables.
const AllTables = "*"

// RecordDecision decides on the dead records or the reused keys of a table, or on one dead record.
type RecordDecision struct {
	Decision, Table, Database string
	// ID of a dead record, 0 for those of the table.
	ID int64
	// By is the caller.
	By string
}

// DecideRecords queues dead records again, or lets the next run clean the children of reused keys, or
// keeps them. It returns the number of records for each database that had any, also with an error.
func (s *Service) DecideRecords(ctx context.Context, d RecordDecision) ([]admin.Retried, error) {
	invalid := func(field, text string) error {
		return &fault.InvalidArgumentError{Field: field, Description: text}
	}
	switch {
	case d.Decision == "":
		return nil, invalid("decision", "must be retry, clean or keep")
	case (d.Table == "") == (d.ID == 0):
		return nil, invalid("table", "must be a table, or * for all tables. With the id of a dead record, omit "+
			"the table")
	case d.Decision != DecisionRetry && (d.ID != 0 || d.Table == AllTables):
		return nil, invalid("table", "must name one table, because clean and keep apply to all reused keys of a table")
	}
	of := admin.Admin{Databases: s.Databases, Only: d.Database}
	var done []admin.Retried
	var err error
	switch {
	case d.Decision != DecisionRetry:
		done, err = of.DecideReused(ctx, d.Table, d.Decision == DecisionClean)
	case d.ID != 0:
		done, err = of.Retry(ctx, &d.ID, "")
	case d.Table == AllTables:
		done, err = of.Retry(ctx, nil, "")
	default:
		done, err = of.Retry(ctx, nil, d.Table)
	}
	if len(done) > 0 {
		s.Logger.InfoContext(ctx, "decision applied to records", "decision", d.Decision, "table", d.Table, "id", d.ID,
			"database", d.Database, "by", run.TruncateActor(d.By))
	}
	if refused, ok := errors.AsType[*lfkadmin.RefusedError](err); ok {
		err = &fault.RefusedError{Reason: "RECORD_NOT_QUEUED", Text: refused.Error()}
	}
	return done, err
}
