package admin

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// States of a [Record].
const (
	RecordDead    = "dead"
	RecordFailing = "failing"
	RecordReused  = "reused"
)

// Record is a deleted parent whose children could not be cleaned, in one of the states.
type Record struct {
	Database, State, ID, Table, Key, Definition, Cause string

	// Failures counts the failed attempts, of a dead record those of this record alone.
	Failures int
	// FailedAt is the time of the last failure. NextTry is zero for a dead or due record.
	FailedAt, NextTry time.Time
	// Cursor is for the page after this record.
	Cursor string
}

// RecordFilter selects the records of one state.
type RecordFilter struct {
	// Table of the deleted rows, "" for all.
	State, Table string
	// After is the Cursor of the last record of the previous page, "" for the first page.
	After string
	// Limit is the maximum number of records.
	Limit int
}

// parallelReads is the maximum number of databases that are read at once.
const parallelReads = 8

// Records lists the records of a state by database and id. It reads the databases in parallel, each
// up to the limit. unread has those that could not be read. It fails if none could be read.
func (l Admin) Records(
	ctx context.Context, f RecordFilter,
) (records []Record, unread []string, err error) {
	selected, err := l.Selected()
	if err != nil {
		return nil, nil, err
	}
	first, begin, err := readCursor(f.After, selected)
	if err != nil {
		return nil, nil, err
	}
	selected = selected[first:]
	pages, failures := make([][]Record, len(selected)), make([]error, len(selected))
	var parallel errgroup.Group
	parallel.SetLimit(parallelReads)
	for i, d := range selected {
		after := lfk.FailingRecord{}
		if i == 0 {
			after = begin
		}
		parallel.Go(func() error {
			failures[i] = Admin{Databases: []*repo.Database{d}}.each(ctx, func(d *repo.Database) (err error) {
				pages[i], err = recordsOf(ctx, d, f, after)
				return err
			})
			return nil
		})
	}
	_ = parallel.Wait()
	for i, d := range selected {
		records = append(records, pages[i]...)
		if failures[i] != nil {
			unread = append(unread, d.Name)
		}
	}
	if len(unread) == len(selected) {
		return nil, nil, errors.Join(failures...)
	}
	return records[:min(len(records), f.Limit)], unread, nil
}

// recordsOf reads a page of one database.
func recordsOf(
	ctx context.Context, d *repo.Database, f RecordFilter, after lfk.FailingRecord,
) (page []Record, err error) {
	add := func(r Record, queue lfk.QueueName, partition int64) {
		r.Database, r.State = d.Name, f.State
		r.Cursor = strings.Join([]string{d.Name, string(queue), strconv.FormatInt(partition, 10), r.ID}, " ")
		page = append(page, r)
	}
	if f.State == RecordDead {
		id, _ := strconv.ParseInt(string(after.ID), 10, 64)
		records, err := admin.New(d.Database).DeadRecords(ctx, admin.DeadRecordFilter{Table: f.Table}, id, f.Limit)
		for _, r := range records {
			add(Record{
				ID: strconv.FormatInt(r.ID, 10), Table: r.Table, Key: r.Key().String(), Definition: r.Definition,
				Cause: r.SQLState, Failures: r.Failures, FailedAt: r.DeadAt,
			}, "", 0)
		}
		return page, err
	}
	queue, err := d.Queue.DeletedRecordsShape(ctx)
	if err != nil || !queue.Exists {
		return nil, err
	}
	filter := lfk.FailingFilter{Table: f.Table}
	if f.State == RecordReused {
		filter.SQLState = reasons.KeyReused
	}
	records, err := d.Queue.FailingRecords(ctx, queue, filter, after, f.Limit)
	for _, r := range records {
		listed := Record{
			ID: string(r.ID), Table: r.Table, Key: r.Key().String(), Definition: r.Definition,
			Cause: r.SQLState, Failures: r.Setbacks, FailedAt: r.FailedAt,
		}
		if r.NextTry != nil {
			listed.NextTry = *r.NextTry
		}
		add(listed, r.Queue, r.Partition)
	}
	return page, err
}

// readCursor returns the first database of a page, and the record after which the page begins in it.
func readCursor(text string, selected []*repo.Database) (first int, after lfk.FailingRecord, err error) {
	if text == "" {
		return 0, after, nil
	}
	parts := append(strings.Split(text, " "), "", "", "")
	first = slices.IndexFunc(selected, func(d *repo.Database) bool { return d.Name == parts[0] })
	partition, failed := strconv.ParseInt(parts[2], 10, 64)
	if first < 0 || failed != nil {
		return 0, after, &fault.InvalidArgumentError{
			Field: "page_token", Description: "does not belong to a list of records in these databases",
		}
	}
	return first, lfk.FailingRecord{
		Queue: lfk.QueueName(parts[1]), Partition: partition, ID: lfk.RecordNumber(parts[3]),
	}, nil
}
