package repo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

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
	b := newBench(parallel(t), "")
	for _, state := range []string{"40P01", "40001"} {
		b.collide(3, state)
		if err := b.SetFeatureFlag(context.Background(), "tried_"+state, true); err != nil {
			t.Errorf("%s three times: %v", state, err)
		}
		b.want(`SELECT last_value FROM collisions`, "4")
	}
	b.collide(4, "40P01")
	err := b.SetFeatureFlag(context.Background(), "given_up", true)
	var refused *repo.Error
	if !errors.As(err, &refused) || refused.Class() != repo.ClassLock {
		t.Errorf("four times: %v", err)
	}
	// Whatever else goes wrong is not tried again.
	b.collide(1, "23514")
	if err := b.SetFeatureFlag(context.Background(), "refused", true); err == nil {
		t.Error("a violation was tried again")
	}
	b.want(`SELECT string_agg(name, ' ' ORDER BY name) FROM maintenance.feature_flags`, "tried_40001 tried_40P01")
}

func TestError_RedactedTextHasNoValues(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	_, _, violation := b.InsertRun(ctx, repo.Run{ID: "0197c000-0000-7000-8000-000000000001", State: repo.RunRunning, Trigger: "alice@example.com"}, time.Minute, "")
	for want, err := range map[string]error{
		"forget the run on main: 22P02 invalid_text_representation":                            b.DeleteRun(ctx, "alice@example.com"),
		"record the run on main: 23514 check_violation, constraint runs_trigger_check of runs": violation,
	} {
		refused, ok := errors.AsType[*repo.Error](err)
		if !ok || refused.Redacted() != want || !strings.Contains(err.Error(), "ERROR: ") {
			t.Errorf("got %v, redacted %q", err, refused.Redacted())
		}
	}
}
