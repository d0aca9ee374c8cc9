package repo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func (b *bench) acquire(holder string, ttl time.Duration) fencing.Lease {
	b.Helper()
	return assert.Must(b.Leases.AcquireLease(context.Background(), "work", holder, ttl))(b.T)
}

func TestLease_BelongsToOneWhoRenewsAndReleasesItUntilItExpires(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	ctx := context.Background()
	first := b.acquire("a", time.Hour)
	if first.Epoch != 1 || first.Holder != "a" || first.Expired || first.ExpiresAt.Sub(first.RenewedAt) != time.Hour || !first.AcquiredAt.Equal(first.RenewedAt) {
		t.Errorf("%+v", first)
	}
	for _, holder := range []string{"a", "b"} { // nor does its holder get it twice
		_, err := b.Leases.AcquireLease(ctx, "work", holder, time.Hour)
		held, ok := errors.AsType[*fencing.LeaseHeldError](err)
		assert.That(t, ok && held.Lease.Holder == "a" && held.Lease.Epoch == 1 && held.Remaining > 59*time.Minute && held.Remaining <= time.Hour,
			"%s: %v, want that a has it", holder, err)
	}
	renewed, err := b.Leases.RenewLease(ctx, first.Fence, time.Minute)
	if err != nil || renewed.Epoch != 1 || !renewed.AcquiredAt.Equal(first.AcquiredAt) || !renewed.RenewedAt.After(first.RenewedAt) || renewed.ExpiresAt.Sub(renewed.RenewedAt) != time.Minute {
		t.Errorf("%+v, %v", renewed, err)
	}
	stays := func(fences ...fencing.Fence) {
		t.Helper()
		row := b.value(`SELECT l::text || xmin FROM maintenance.leases l`)
		for _, f := range fences {
			if _, err := b.Leases.RenewLease(context.Background(), f, time.Hour); !errors.Is(err, dberr.ErrLeaseLost) {
				t.Errorf("%+v: %v, want that the lease is lost", f, err)
			}
			assert.NoError(t, b.Leases.ReleaseLease(context.Background(), f))
			b.want(`SELECT l::text || xmin FROM maintenance.leases l`, row)
		}
	}
	stays(strangers(first.Fence)...)
	assert.NoError(t, b.Leases.ReleaseLease(ctx, first.Fence))
	stays(first.Fence) // what has expired is not renewed, and a second release changes nothing
	second := b.acquire("b", time.Hour)
	assert.That(t, second.Epoch == 2 && second.Holder == "b", "%+v", second)
	b.exec(`UPDATE maintenance.leases SET expires_at = now() - interval '1 day'`)
	third := b.acquire("a", time.Minute)
	assert.That(t, third.Epoch == 3, "%+v", third)
	b.want(`SELECT count(*) FROM maintenance.leases`, "1")
}

func TestLease_IsHeldAsLongAsExpiresAtIsToCome(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`ALTER TABLE maintenance.leases ALTER holder DROP NOT NULL, ALTER epoch DROP NOT NULL, ALTER acquired_at DROP NOT NULL,
		ALTER renewed_at DROP NOT NULL, ALTER expires_at DROP NOT NULL`)
	exec := servicetest.Open(t, b.with("default_query_exec_mode=exec"))
	last := time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	for _, c := range []struct {
		name, row string
		held      bool
		until     time.Time
	}{
		{"acquired in the future", `'x', 7, now() + interval '1 year', now(), now() + interval '1 hour'`, true, time.Time{}},
		{"renewed in the future", `'x', 7, now(), now() + interval '1 day', now() + interval '1 hour'`, true, time.Time{}},
		{"renewed when it expires", `'x', 7, now(), now() + interval '1 hour', now() + interval '1 hour'`, true, time.Time{}},
		{"acquired in no year", `'', -1, 'infinity', '-infinity', now() + interval '1 hour'`, true, time.Time{}},
		{"acquired before Christ", `'x', 7, '4000-01-01 BC', '4000-01-01 BC', now() + interval '1 hour'`, true, time.Time{}},
		{"never expires", `'x', 7, now(), now(), 'infinity'`, true, last},
		{"expires after the year 9999", `'x', 7, now(), now(), '294276-12-31'`, true, last},
		{"nothing but an end", `NULL, NULL, NULL, NULL, now() + interval '1 hour'`, true, time.Time{}},
		{"expired, renewed in the future", `'x', 7, 'infinity', 'infinity', now()`, false, time.Time{}},
		{"expired for ever", `'x', 7, now(), now(), '-infinity'`, false, time.Time{}},
		{"no end", `'x', NULL, now(), now(), NULL`, false, time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.exec(`DELETE FROM maintenance.leases;
				INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at) VALUES ('work', ` + c.row + `)`)
			for _, d := range []*repo.Database{b.Database, exec} {
				listed, err := d.Leases.ListLeases(t.Context(), []string{"work"})
				assert.Require(t, err == nil && len(listed) == 1 && listed[0].Expired != c.held, "%v %v", listed, err)
				if !c.held {
					continue
				}
				_, err = d.Leases.AcquireLease(t.Context(), "work", "a", time.Minute)
				held, ok := errors.AsType[*fencing.LeaseHeldError](err)
				assert.That(t, ok && held.Remaining > 0 && held.Remaining <= 24*time.Hour, "got %v, want that it is held, for a day at most", err)
				assert.That(t, !ok || strings.Contains(held.Error(), "never expires") == c.until.Equal(last),
					"got %v, want until when, or that it never expires", held)
				assert.That(t, !ok || c.until.IsZero() || held.Lease.ExpiresAt.Equal(c.until), "held until %s, want %s", held.Lease.ExpiresAt, c.until)
			}
			if !c.held {
				b.acquire("a", time.Minute)
			}
		})
	}
}

func TestLease_OneOfManyWhoAskAtOnceGetsIt(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	for round := range 5 {
		results := make(chan error, 8)
		for i := range cap(results) {
			go func() {
				_, err := b.Leases.AcquireLease(context.Background(), "work", fmt.Sprint(i), time.Hour)
				results <- err
			}()
		}
		got := 0
		for range cap(results) {
			err := <-results
			if _, held := errors.AsType[*fencing.LeaseHeldError](err); err == nil {
				got++
			} else if !held {
				t.Error(err)
			}
		}
		assert.That(t, got == 1, "round %d: %d got it", round, got)
		b.want(`SELECT epoch FROM maintenance.leases`, fmt.Sprint(round+1))
		b.exec(`UPDATE maintenance.leases SET expires_at = now()`)
	}
}

func TestLease_ReleasedOneIsNotSaidToBeHeld(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for range 50 {
				lease, err := b.Leases.AcquireLease(context.Background(), "work", fmt.Sprint(i), time.Hour)
				if held, ok := errors.AsType[*fencing.LeaseHeldError](err); ok {
					assert.That(t, held.Lease.Expired != strings.Contains(held.Error(), " is held by "), "%+v: %s", held, held)
					continue
				}
				assert.NoError(t, err)
				assert.NoError(t, b.Leases.ReleaseLease(context.Background(), lease.Fence))
			}
		})
	}
	work.Wait()
	released := &fencing.LeaseHeldError{Lease: fencing.Lease{Fence: fencing.Fence{Name: "work", Holder: "a"}, Expired: true}}
	assert.Equal(t, released.Error(), "lease work was just released by a: try again")
}

// strangers are fences like this one that are not its holder's.
func strangers(f fencing.Fence) []fencing.Fence {
	return []fencing.Fence{
		{Name: f.Name, Holder: "stranger", Epoch: f.Epoch},
		{Name: f.Name, Holder: f.Holder, Epoch: f.Epoch - 1},
		{Name: f.Name, Holder: f.Holder, Epoch: f.Epoch + 1},
		{Name: "other", Holder: f.Holder, Epoch: f.Epoch},
	}
}

const fencedState = `SELECT concat_ws('; ', (SELECT string_agg(c::text || ctid || xmin, ',') FROM c),
	(SELECT string_agg(q::text || ctid || xmin, ',') FROM loose_foreign_keys_deleted_records q), (SELECT count(*) FROM maintenance.record_failures),
	(SELECT string_agg(inhrelid::text, ',') FROM pg_inherits WHERE inhparent = 'loose_foreign_keys_deleted_records'::regclass))`

// fencedSteps are all steps of a run that write, on records, children and partitions that are there.
func fencedSteps(b *bench) map[string]func(context.Context, fencing.Permit) error {
	b.Helper()
	ctx := context.Background()
	b.exec(`CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 9 + 1 FROM generate_series(1, 27) i`)
	b.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT 'public.p', generate_series(1, 9)`)
	b.exec(`CREATE TABLE gitlab_partitions_dynamic.unused PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (0);
		UPDATE maintenance.queue_partitions SET active_since = now() - interval '2 days'`)
	queue, err := b.Queue.DeletedRecords(ctx)
	assert.NoError(b.T, err)
	broken := queue
	broken.Active = 7
	limits := fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
	page, err := b.Queue.LoadRecords(ctx, queue, lfk.RecordPage{Parent: "public.p", Limit: 3}, limits)
	records := page.Records
	assert.Require(b.T, err == nil && len(records) == 3, "%v %v", records, err)
	failed := []lfk.RecordFailure{{Record: records[0], Isolated: true, Definition: "d", SQLState: "P0001", Message: "m"}}
	steps := map[string]func(context.Context, fencing.Permit) error{
		"remove records": func(ctx context.Context, p fencing.Permit) error {
			return second(b.Queue.RemoveRecords(ctx, p, queue, records))
		},
		"postpone records": func(ctx context.Context, p fencing.Permit) error {
			return second(b.Queue.PostponeRecords(ctx, p, queue, records))
		},
		"charge records": func(ctx context.Context, p fencing.Permit) error {
			_, _, err := b.Queue.ChargeRecords(ctx, p, queue, records)
			return err
		},
		"fail records": func(ctx context.Context, p fencing.Permit) error {
			_, _, err := b.Queue.FailRecords(ctx, p, queue, failed)
			return err
		},
		"roll partition": func(ctx context.Context, p fencing.Permit) error {
			_, err := b.Queue.RollPartition(ctx, p, queue)
			return err
		},
		"drop partitions": func(ctx context.Context, p fencing.Permit) error {
			_, err := b.Queue.DropPartitions(ctx, p, queue)
			return err
		},
		"repair partitions": func(ctx context.Context, p fencing.Permit) error {
			return second(b.Queue.RepairPartition(ctx, p, broken))
		},
	}
	for _, action := range []string{lfk.AsyncDelete, lfk.AsyncNullify} {
		children, err := b.Children.Children(ctx, []lfk.Definition{{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: action}})
		assert.Require(b.T, err == nil && children[0] != nil, "%v %v", children, err)
		purge := lfk.Purge{Keys: lfk.IntKeys(1, 2, 3), Cap: 100}
		steps[action+" all"] = func(ctx context.Context, p fencing.Permit) error {
			purge.Permit = p
			return second(children[0].PurgeAll(ctx, purge, queue, nil))
		}
		steps[action+" all, and the records"] = func(ctx context.Context, p fencing.Permit) error {
			purge.Permit = p
			return second(children[0].PurgeAll(ctx, purge, queue, records))
		}
		steps[action+" shares"] = func(ctx context.Context, p fencing.Permit) error {
			purge.Permit = p
			return second(children[0].PurgeShares(ctx, purge, 1, true))
		}
	}
	return steps
}

func TestFence_NothingIsWrittenWithoutTheLease(t *testing.T) {
	b := installed(servicetest.Parallel(t))
	steps, ctx := fencedSteps(b), context.Background()
	lease := b.acquire("a", time.Hour)
	expired := assert.Must(b.Leases.AcquireLease(context.Background(), "expired", "a", time.Hour))(t)
	b.exec(`UPDATE maintenance.leases SET expires_at = now() WHERE name = 'expired'`)
	before := b.value(fencedState)
	for name, step := range steps {
		for _, f := range append(strangers(lease.Fence), expired.Fence) {
			if err := step(ctx, by(f)); !errors.Is(err, dberr.ErrLeaseLost) {
				t.Errorf("%s by %+v: %v, want that the lease is lost", name, f, err)
			}
			after := b.value(fencedState)
			assert.Require(t, after == before, "%s by %+v has changed\n%s\nto %s", name, f, before, after)
		}
	}
	// For its holder they do write.
	for _, name := range []string{
		"async_nullify shares", "async_delete shares", "charge records", "postpone records", "fail records",
		"async_delete all, and the records", "drop partitions", "roll partition", "repair partitions",
	} {
		if err := steps[name](ctx, by(lease.Fence)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		after := b.value(fencedState)
		assert.That(t, after != before, "%s has changed nothing", name)
		before = after
	}
}

func TestFence_WhatIsInFlightWhenARunIsCancelledIsHeardOf(t *testing.T) {
	b := installed(servicetest.Parallel(t))
	steps := fencedSteps(b)
	commit := b.estate.HoldThenCommit(`LOCK TABLE c IN SHARE ROW EXCLUSIVE MODE`)
	permit := by(b.acquire("a", time.Hour).Fence)
	permit.Limits = fencing.Limits{Statement: devdb.WaitTimeout, Lock: devdb.WaitTimeout}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- steps["async_delete all"](ctx, permit) }()
	b.estate.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`, "true")
	cancel()
	commit()
	assert.NoError(t, <-done)
	b.want(`SELECT count(*) FROM c WHERE p_id <= 3`, "0")
}
