package repo_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestReadOnlyServer_IsUnreachableAndItsConnectionsAreGivenUp(t *testing.T) {
	b := newBench(parallel(t), "")
	ctx := context.Background()
	name := pgx.Identifier{b.value(`current_database()`)}.Sanitize()
	// As on a standby, a connection made now stays read-only.
	b.exec(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`)
	if !b.UnreachableSince().IsZero() {
		t.Error("unreachable before anything was asked")
	}
	before := time.Now()
	err := b.SetFeatureFlag(ctx, "f", true)
	servicetest.WantError(t, err, "unreachable", "25006")
	if refused, ok := errors.AsType[*repo.Error](err); !ok || !errors.Is(err, repo.ErrUnreachable) || !strings.Contains(refused.Explanation(), "read-only") {
		t.Errorf("%v", err)
	}
	// That it answers is no sign of health.
	servicetest.Must(b.Now(ctx))(t)
	since := b.UnreachableSince()
	if since.Before(before) || since.After(time.Now()) {
		t.Errorf("unreachable since %s", since)
	}
	servicetest.WantError(t, b.Writable(ctx), "read-only")
	servicetest.WantError(t, b.StillWritable(ctx), "read-only")
	b.exec(`ALTER DATABASE ` + name + ` RESET default_transaction_read_only`)
	devdb.Eventually(t, "main to be writable", func() bool {
		if b.Writable(ctx) == nil {
			return true
		}
		if b.UnreachableSince() != since {
			t.Fatalf("unreachable since %s, before that since %s", b.UnreachableSince(), since)
		}
		return false
	})
	if err := b.SetFeatureFlag(ctx, "f", true); err != nil || !b.UnreachableSince().IsZero() {
		t.Errorf("%v, unreachable since %s", err, b.UnreachableSince())
	}
	servicetest.NoError(t, b.StillWritable(ctx))
}

func TestReadOnlyServer_IsUnreachableForBoundedStatementsThatWriteAndReadByTheOthers(t *testing.T) {
	b := newBench(parallel(t), "main")
	ctx := context.Background()
	b.exec(`ALTER DATABASE ` + pgx.Identifier{b.value(`current_database()`)}.Sanitize() + ` SET default_transaction_read_only = on`)
	l := repo.Limits{Statement: time.Second, Lock: time.Second}
	if _, err := b.NewDeletions(ctx, []int64{1}, "r", l); err != nil {
		t.Errorf("a read is refused: %v", err)
	}
	_, err := b.DropTokenPass(ctx, repo.Permit{Guard: repo.Fence{}.Guard(), Limits: l})
	servicetest.WantError(t, err, "25006")
	if !errors.Is(err, repo.ErrUnreachable) || b.UnreachableSince().IsZero() {
		t.Errorf("%v, unreachable since %s", err, b.UnreachableSince())
	}
}

func TestReadOnlyStatement_OfOurOwnGivesUpNoConnection(t *testing.T) {
	b := newBench(parallel(t), "")
	ctx := context.Background()
	servicetest.Must(b.Now(ctx))(t)
	made := b.Pool().Stat().NewConnsCount()
	l := repo.Limits{Statement: time.Second, Lock: time.Second, ReadOnly: true}
	_, err := b.AdvanceTokenPass(ctx, repo.Permit{Guard: repo.Fence{}.Guard(), Limits: l},
		"00000000-0000-7000-8000-000000000001", repo.TokenStep{}, nil)
	servicetest.WantError(t, err, "25006")
	if !b.UnreachableSince().IsZero() {
		t.Error("the database is taken for unreachable")
	}
	if _, err := b.Now(ctx); err != nil || b.Pool().Stat().NewConnsCount() != made {
		t.Errorf("%v, %d connections made, before that %d", err, b.Pool().Stat().NewConnsCount(), made)
	}
}

func TestTerminatedBackends_CostOneStatementEach(t *testing.T) {
	b := newBench(parallel(t), "")
	ctx := context.Background()
	for range 3 {
		servicetest.Must(b.Now(ctx))(t)
		b.exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
		if _, err := b.Now(ctx); err != nil && !errors.Is(err, repo.ErrUnreachable) {
			t.Errorf("%v, want ErrUnreachable", err)
		}
	}
	if _, err := b.Now(ctx); err != nil || !b.UnreachableSince().IsZero() {
		t.Errorf("%v, unreachable since %s", err, b.UnreachableSince())
	}
}

func TestFullPool_IsUnreachableAndSaysWhy(t *testing.T) {
	b := newBench(parallel(t), "")
	small := open(t, b.with("pool_max_conns=12"))
	ctx := context.Background()
	for range small.Pool().Config().MaxConns {
		conn := servicetest.Must(small.Pool().Acquire(ctx))(t)
		defer conn.Release()
	}
	_, err := small.Now(ctx)
	refused, ok := errors.AsType[*repo.Error](err)
	if !ok || !errors.Is(err, repo.ErrUnreachable) || !strings.Contains(refused.Explanation(), "pool") {
		t.Errorf("%v", err)
	}
}

func TestWhateverFailsWhileConnecting_IsUnreachable(t *testing.T) {
	b := newBench(parallel(t), "")
	for name, url := range map[string]string{
		"password": b.as("caretaker", "wrong"), "database": strings.Replace(b.url, b.value(`current_database()`), "none", 1),
	} {
		err := open(t, url).Ping(context.Background())
		refused, ok := errors.AsType[*repo.Error](err)
		if !ok || !errors.Is(err, repo.ErrUnreachable) || !refused.Refused() || refused.Explanation() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConditionClass_ReadsWhatConditionHasWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]repo.Class{
		"renew lease x on main: unreachable":                                                  repo.ClassUnreachable,
		"c.p_id -> p on ci: 42703 undefined_column, 3 records; c.q -> p on main: unreachable": repo.ClassSchema,
		"claim on main: 40P01 deadlock_detected":                                              repo.ClassLock,
		"purge on main: 57014 query_canceled":                                                 repo.ClassTimeout,
		"purge on main: 23503 foreign_key_violation":                                          repo.ClassData,
	} {
		if got, found := repo.ConditionClass(text); !found || got != want {
			t.Errorf("%s: %v, %t, want %v", text, got, found, want)
		}
	}
	if _, found := repo.ConditionClass("internal error; the log of this run has it"); found {
		t.Error("found a condition where there is none")
	}
}

func TestValuesThatDoNotFit_AreNoSignThatTheServerIsAway(t *testing.T) {
	b := newBench(parallel(t), "")
	b.exec(`ALTER TABLE maintenance.leases ALTER holder DROP NOT NULL, ALTER epoch TYPE text;
		INSERT INTO maintenance.leases (name, epoch, acquired_at, renewed_at, expires_at) VALUES ('x', 1, now(), now(), now())`)
	_, read := b.ListLeases(context.Background(), []string{"x"})
	_, written := b.RenewLease(context.Background(), repo.Fence{Name: "x", Holder: "us", Epoch: 1}, time.Minute)
	for what, err := range map[string]error{"written": written, "read": read} {
		refused, ok := errors.AsType[*repo.Error](err)
		if !ok || refused.Class() != repo.ClassSchema || errors.Is(err, repo.ErrUnreachable) || !strings.Contains(refused.Condition(), "datatype_mismatch") || !b.UnreachableSince().IsZero() {
			t.Errorf("%s: %v, unreachable since %s", what, err, b.UnreachableSince())
		}
	}
}
