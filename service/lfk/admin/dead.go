package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// DeadRecord is a deleted parent whose children could not be cleaned.
type DeadRecord struct {
	Database string `json:"database"`
	admin.DeadRecord
}

// recordPage bounds the records of one query.
const recordPage = 1000

// Dead sends the dead records of all selected databases, or those of one table, by database and id.
// For a table that does not exist and has no such records it returns [ErrUnknownTable].
func (l Admin) Dead(ctx context.Context, table string, send func(DeadRecord) error) error {
	found := false
	err := l.each(ctx, func(d *repo.Database) error {
		after := int64(0)
		for {
			page, err := admin.New(d.Database).DeadRecords(ctx, admin.DeadRecordFilter{Table: table}, after,
				recordPage)
			if err != nil {
				return err
			}
			for _, r := range page {
				after, found = r.ID, true
				if err := send(DeadRecord{d.Name, r}); err != nil {
					return err
				}
			}
			if len(page) < recordPage {
				return nil
			}
		}
	})
	if err == nil && !found && table != "" {
		err = l.knownTable(ctx, table)
	}
	return err
}

// FailingRecord is a deleted parent whose children could not be cleaned, for example because a
// child is absent, and which is retried.
type FailingRecord struct {
	Database string `json:"database"`
	lfk.FailingRecord
}

// Failing returns the records that have failed or are held and are not dead, of all selected
// databases or of one table. They are sorted by database, partition and id. For a table that does
// not exist and has no such records it returns [ErrUnknownTable].
func (l Admin) Failing(ctx context.Context, table string) ([]FailingRecord, error) {
	return l.failing(ctx, lfk.FailingFilter{Table: table})
}

func (l Admin) failing(ctx context.Context, f lfk.FailingFilter) ([]FailingRecord, error) {
	records := []FailingRecord{}
	err := l.each(ctx, func(d *repo.Database) error {
		var last lfk.FailingRecord
		queue, err := d.Queue.DeletedRecordsShape(ctx)
		for more := true; more && err == nil; {
			var page []lfk.FailingRecord
			page, err = d.Queue.FailingRecords(ctx, queue, f, last, recordPage)
			for _, r := range page {
				last = r
				records = append(records, FailingRecord{d.Name, r})
			}
			more = len(page) == recordPage
		}
		return err
	})
	if err == nil && len(records) == 0 && f.Table != "" {
		err = l.knownTable(ctx, f.Table)
	}
	return records, err
}

// Retried is the number of records that Retry returned to the queue of one database.
type Retried struct {
	Database string `json:"database"`
	Records  int64  `json:"records"`
}

// Retry returns dead records to the queue: the one with an id, those of a table, or all (nil and
// ""). It fails without such records, or if several databases have the id. The result has the
// records returned before an error.
func (l Admin) Retry(ctx context.Context, id *int64, table string) ([]Retried, error) {
	filter := admin.DeadRecordFilter{ID: id, Table: table}
	var holders []*repo.Database
	err := l.each(ctx, func(d *repo.Database) error {
		some, err := admin.New(d.Database).DeadRecords(ctx, filter, 0, 1)
		if len(some) > 0 {
			holders = append(holders, d)
		}
		return err
	})
	done := []Retried{}
	switch {
	case err != nil:
		return done, err
	case len(holders) == 0:
		return done, l.noDeadRecord(ctx, id, table)
	case id != nil && len(holders) > 1:
		return done, &fault.InvalidArgumentError{Field: "database", Description: fmt.Sprintf(
			"dead record %d exists in %s: select a database with --database", *id, run.DatabaseNames(holders))}
	}
	for _, d := range holders {
		n, retryErr := admin.New(d.Database).RetryDeadRecords(ctx, filter)
		if n > 0 {
			done = append(done, Retried{d.Name, n})
		}
		err = errors.Join(err, retryErr)
	}
	return done, err
}

// noRecord returns the error for a table without the records of a decision.
func noRecord(table, text string) error {
	return &fault.RefusedError{Reason: "UNKNOWN_RECORD", Text: text, Metadata: map[string]string{"table": table}}
}

// noDeadRecord returns why no record can be retried: the id or the table does not exist, or the
// records are not dead but failing.
func (l Admin) noDeadRecord(ctx context.Context, id *int64, table string) error {
	const advice = "run `caretaker lfk dead` to list the dead records"
	if id != nil {
		text := fmt.Sprintf("unknown dead record %d: %s", *id, advice)
		return fault.Unknown(ErrUnknownRecord, "id", strconv.FormatInt(*id, 10), text)
	}
	if table != "" {
		if err := l.knownTable(ctx, table); err != nil {
			return err
		}
	}
	failing := false
	_ = l.each(ctx, func(d *repo.Database) error { // of a hint no error matters
		queue, err := d.Queue.DeletedRecordsShape(ctx)
		if err == nil {
			some, _ := d.Queue.FailingRecords(ctx, queue, lfk.FailingFilter{Table: table}, lfk.FailingRecord{}, 1)
			failing = failing || len(some) > 0
		}
		return err
	})
	if failing {
		return noRecord(table, "no dead record matches, and failing records are retried automatically: run "+
			"`caretaker lfk dead --failing` to see the next attempts")
	}
	return noRecord(table, "no dead record matches: "+advice)
}
