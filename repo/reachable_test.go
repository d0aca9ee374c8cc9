package repo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestReadOnlyServer_IsUnreachableAndItsConnectionsAreGivenUp(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	ctx := context.Background()
	name := pgx.Identifier{b.value(`current_database()`)}.Sanitize()
	// As on a standby, a connection made now stays read-only.
	b.exec(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`)
	assert.That(t, b.UnreachableSince().IsZero(), "unreachable before anything was asked")
	// Bounded statements that write fail, the others read.
	bounded := servicetest.Open(t, b.url)
	l := fencing.Limits{Statement: time.Second, Lock: time.Second}
	if _, err := bounded.Tokens.NewDeletions(ctx, []int64{1}, "r", l); err != nil {
		t.Errorf("a read is refused: %v", err)
	}
	_, refusal := bounded.Tokens.DropTokenPass(ctx, fencing.Permit{Guard: fencing.Fence{}.Guard(), Limits: l})
	servicetest.WantError(t, refusal, "25006")
	assert.That(t, errors.Is(refusal, dberr.ErrUnreachable) && !bounded.UnreachableSince().IsZero(), "%v, unreachable since %s", refusal, bounded.UnreachableSince())
	before := time.Now()
	err := b.Flags.SetFeatureFlag(ctx, "f", true)
	servicetest.WantError(t, err, "unreachable", "25006")
	if refused, ok := errors.AsType[*dberr.Error](err); !ok || !errors.Is(err, dberr.ErrUnreachable) || !strings.Contains(refused.Why(), "read-only") {
		t.Errorf("%v", err)
	}
	// That it answers is no sign of health.
	assert.Must(b.Now(ctx))(t)
	since := b.UnreachableSince()
	assert.That(t, !since.Before(before) && !since.After(time.Now()), "unreachable since %s", since)
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
	if err := b.Flags.SetFeatureFlag(ctx, "f", true); err != nil || !b.UnreachableSince().IsZero() {
		t.Errorf("%v, unreachable since %s", err, b.UnreachableSince())
	}
	assert.NoError(t, b.StillWritable(ctx))
}

func TestConnections_AreGivenUpWhereTheServerIsAway(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	ctx := context.Background()
	// Not so after a statement that is read-only by our own will.
	assert.Must(b.Now(ctx))(t)
	made := b.Jobs.Pool().Stat().NewConnsCount()
	l := fencing.Limits{Statement: time.Second, Lock: time.Second, ReadOnly: true}
	_, err := b.Tokens.AdvanceTokenPass(ctx, fencing.Permit{Guard: fencing.Fence{}.Guard(), Limits: l},
		"00000000-0000-7000-8000-000000000001", gitlab.TokenStep{}, nil)
	servicetest.WantError(t, err, "25006")
	assert.That(t, b.UnreachableSince().IsZero(), "the database is taken for unreachable")
	if _, err := b.Now(ctx); err != nil || b.Jobs.Pool().Stat().NewConnsCount() != made {
		t.Errorf("%v, %d connections made, before that %d", err, b.Jobs.Pool().Stat().NewConnsCount(), made)
	}
	// Terminated backends cost one statement each.
	for range 3 {
		assert.Must(b.Now(ctx))(t)
		b.exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
		if _, err := b.Now(ctx); err != nil && !errors.Is(err, dberr.ErrUnreachable) {
			t.Errorf("%v, want ErrUnreachable", err)
		}
	}
	if _, err := b.Now(ctx); err != nil || !b.UnreachableSince().IsZero() {
		t.Errorf("%v, unreachable since %s", err, b.UnreachableSince())
	}
	// Any failure of a connection.
	for name, url := range map[string]string{
		"password": b.estate.URLAs("caretaker", "wrong"), "database": strings.Replace(b.url, b.value(`current_database()`), "none", 1),
	} {
		err := servicetest.Open(t, url).Ping(ctx)
		refused, ok := errors.AsType[*dberr.Error](err)
		assert.That(t, ok && errors.Is(err, dberr.ErrUnreachable) && refused.Refused() && refused.Why() != "", "%s: %v", name, err)
	}
}

func TestFault_FullPool_IsUnreachableAndSaysWhy(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	small := servicetest.Open(t, b.with("pool_max_conns=12"))
	ctx := context.Background()
	for range small.Jobs.Pool().Config().MaxConns {
		conn := assert.Must(small.Jobs.Pool().Acquire(ctx))(t)
		defer conn.Release()
	}
	_, err := small.Now(ctx)
	refused, ok := errors.AsType[*dberr.Error](err)
	assert.That(t, ok && errors.Is(err, dberr.ErrUnreachable) && strings.Contains(refused.Why(), "pool"), "%v", err)
}

func TestConditionClass_ReadsWhatConditionHasWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]dberr.Class{
		"renew lease x on main: unreachable":                                                  dberr.ClassUnreachable,
		"c.p_id -> p on ci: 42703 undefined_column, 3 records; c.q -> p on main: unreachable": dberr.ClassSchema,
		"claim on main: 40P01 deadlock_detected":                                              dberr.ClassLock,
		"purge on main: 57014 query_canceled":                                                 dberr.ClassTimeout,
		"purge on main: 25P04 transaction_timeout":                                            dberr.ClassTimeout,
		"purge on main: 23503 foreign_key_violation":                                          dberr.ClassData,
	} {
		got, found := dberr.ConditionClass(text)
		assert.That(t, found && got == want, "%s: %v, %t, want %v", text, got, found, want)
	}
	if _, found := dberr.ConditionClass("internal error: see the log of this run"); found {
		t.Error("found a condition where there is none")
	}
}

func TestValuesThatDoNotFit_AreNoSignThatTheServerIsAwayAndNotPublic(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	ctx := context.Background()
	_, _, violation := b.Runs.InsertRun(ctx, control.Run{ID: "0197c000-0000-7000-8000-000000000001", State: control.RunRunning, Trigger: "alice@example.com"}, time.Minute, "")
	for want, err := range map[string]error{
		"cannot delete the run record on main: 22P02 invalid_text_representation":                     b.Runs.DeleteRun(ctx, "alice@example.com"),
		"cannot record the run on main: 23514 check_violation, constraint runs_trigger_check of runs": violation,
	} {
		refused, ok := errors.AsType[*dberr.Error](err)
		assert.That(t, ok && refused.Public() == want && strings.Contains(err.Error(), "ERROR: "), "got %v, public %q", err, refused.Public())
	}
	b.exec(`ALTER TABLE maintenance.leases ALTER holder DROP NOT NULL, ALTER epoch TYPE text;
		INSERT INTO maintenance.leases (name, epoch, acquired_at, renewed_at, expires_at) VALUES ('x', 1, now(), now(), now())`)
	_, read := b.Leases.ListLeases(context.Background(), []string{"x"})
	_, written := b.Leases.RenewLease(context.Background(), fencing.Fence{Name: "x", Holder: "us", Epoch: 1}, time.Minute)
	for what, err := range map[string]error{"written": written, "read": read} {
		refused, ok := errors.AsType[*dberr.Error](err)
		if !ok || refused.Class() != dberr.ClassSchema || errors.Is(err, dberr.ErrUnreachable) || !strings.Contains(refused.Condition(), "datatype_mismatch") || !b.UnreachableSince().IsZero() {
			t.Errorf("%s: %v, unreachable since %s", what, err, b.UnreachableSince())
		}
	}
}

// collide lets the next n changes of the flags be ended by the database.
func (b *bench) collide(n int, state string) {
	b.Helper()
	b.exec(`CREATE SEQUENCE IF NOT EXISTS collisions;
		CREATE OR REPLACE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF nextval('collisions') <= TG_ARGV[0]::bigint THEN RAISE EXCEPTION USING ERRCODE = TG_ARGV[1]; END IF;
		  RETURN NEW;
		END $$`)
	b.exec(`DROP TRIGGER IF EXISTS collide ON maintenance.feature_flags; ALTER SEQUENCE collisions RESTART`)
	b.exec(fmt.Sprintf(`CREATE TRIGGER collide BEFORE INSERT OR UPDATE ON maintenance.feature_flags
		FOR EACH ROW EXECUTE FUNCTION collide(%d, '%s')`, n, state))
}

func TestStatementsOfOurOwn_AreTriedAgainAfterADeadlock(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	for _, state := range []string{"40P01", "40001"} {
		b.collide(3, state)
		if err := b.Flags.SetFeatureFlag(context.Background(), "tried_"+state, true); err != nil {
			t.Errorf("%s three times: %v", state, err)
		}
		b.want(`SELECT last_value FROM collisions`, "4")
	}
	b.collide(4, "40P01")
	err := b.Flags.SetFeatureFlag(context.Background(), "given_up", true)
	var refused *dberr.Error
	assert.That(t, errors.As(err, &refused) && refused.Class() == dberr.ClassLock, "four times: %v", err)
	// Other errors are not retried.
	b.collide(1, "23514")
	if err := b.Flags.SetFeatureFlag(context.Background(), "refused", true); err == nil {
		t.Error("a violation was tried again")
	}
	b.want(`SELECT string_agg(name, ' ' ORDER BY name) FROM maintenance.feature_flags`, "tried_40001 tried_40P01")
}

func TestOpen_AnErrorHasNoPartOfThePassword(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"postgres://u:k@77q@h/db": "write % as %25", "postgres://u:77q/k@h/db": "write % as", "postgres://u:12/77q@h/db": "write % as",
		"postgres://u:1?77q@h@h/db": "write % as", "postgres://u:1?k=/77q@h/db": "write % as", "postgres://u:%zz77q@h/db": "write % as",
		"postgres://u:77q@h:port/db": "write % as", "postgres://u:77q@h/db?sslmode=x": "failed to configure TLS (sslmode is invalid)",
		"postgres://u:77q@h/db?sslpassword=77q&connect_timeout=x": "invalid connect_timeout", "postgre://u:77q@h/db?a=b": "is not a PostgreSQL URL",
		"host=h password=k 77q dbname=d": "NAME='VALUE' if the value has spaces", "host=h password='77q": "NAME='VALUE' if the value has spaces",
	} {
		_, err := repo.Open(t.Context(), "main", url)
		assert.That(t, err != nil && !strings.Contains(err.Error(), "77q") &&
			strings.Contains(err.Error(), says), "%s: %v", url, err)
	}
	for _, url := range []string{"postgres://h/db?user=a@b", "postgres://u:a%40b@h/db?application_name=a@b", "host=h password=a@b", "postgres:///db?host=/run"} {
		assert.Must(repo.Open(t.Context(), "main", url))(t).Close()
	}
}
