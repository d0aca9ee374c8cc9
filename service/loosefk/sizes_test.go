package loosefk

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
)

func TestStatementSizes_FollowTheTimeThatStatementsTake(t *testing.T) {
	s := &childTask{key: repo.LooseForeignKey{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: repo.AsyncDelete}, database: "main"}
	z := bulk.NewStatementSizes()
	for i, test := range []struct {
		took         time.Duration
		limit, found int64
		capped       bool
		want         int64
	}{
		{10 * time.Millisecond, 1000, 1000, false, 1000},  // not capped: nothing is learned
		{124 * time.Millisecond, 1000, 1000, true, 2000},  // capped and fast
		{10 * time.Millisecond, 20, 20, true, 2000},       // capped by something smaller
		{126 * time.Millisecond, 2000, 2000, true, 2000},  // fast enough
		{250 * time.Millisecond, 2000, 2000, true, 2000},  // the goal
		{500 * time.Millisecond, 2000, 2000, true, 750},   // in proportion, to three quarters of the goal
		{1 * time.Millisecond, 750, 750, true, 1500},      //
		{1 * time.Millisecond, 1500, 1500, true, 3000},    //
		{1 * time.Millisecond, 3000, 3000, true, 6000},    //
		{1 * time.Millisecond, 6000, 6000, true, 12000},   //
		{1 * time.Millisecond, 12000, 12000, true, 20000}, // the bound
		{1 * time.Millisecond, 20000, 20000, true, 20000}, //
		{time.Second, 20000, 20000, false, 3750},          //
		{time.Second, 3750, 2, false, 1},                  // even one row may be slow
		{time.Second, 1, 1, false, 1},                     //
		{100 * time.Millisecond, 1, 1, true, 2},           //
	} {
		z.Observe(s, test.took, test.limit, test.found, test.capped)
		if got := z.Get(s); got != test.want {
			t.Errorf("after statement %d: %d rows, want %d", i, got, test.want)
		}
	}
}

func TestStatementSizes_AreHalvedOnATimeoutDownToOne(t *testing.T) {
	s := &childTask{}
	z := bulk.NewStatementSizes()
	for _, want := range []int64{500, 250, 125, 62, 31, 15, 7, 3, 1, 1} {
		if z.Halve(s, z.Get(s)); z.Get(s) != want {
			t.Errorf("%d rows, want %d", z.Get(s), want)
		}
	}
}

func TestStatementSizes_AreKeptForEachDefinitionAndHome(t *testing.T) {
	key := repo.LooseForeignKey{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: repo.AsyncDelete}
	nullify := key
	nullify.OnDelete = repo.AsyncNullify
	other := key
	other.Columns = []string{"q_id"}
	z := bulk.NewStatementSizes()
	z.Halve(&childTask{key: key, database: "main"}, 100)
	for name, s := range map[string]*childTask{
		"home": {key: key, database: "ci"}, "action": {key: nullify, database: "main"}, "column": {key: other, database: "main"},
	} {
		if z.Get(s) != bulk.FirstStatementRows {
			t.Errorf("another %s shares the size", name)
		}
	}
	if got := z.Get(&childTask{key: key, database: "main"}); got != 50 {
		t.Errorf("%d rows in the next run, want 50", got)
	}
}

func TestLooseForeignKeysCleanup_TurboModeNeverLowersWhatIsConfigured(t *testing.T) {
	for _, test := range []struct {
		deletes, updates         int64
		runtime                  time.Duration
		wantDeletes, wantUpdates int64
		wantRuntime              time.Duration
	}{
		{100_000, 50_000, 30 * time.Second, 200_000, 150_000, 45 * time.Second},
		{1, 1, time.Second, 200_000, 150_000, 45 * time.Second},
		{300_000, 50_000, time.Minute, 300_000, 150_000, time.Minute},
		{100_000, 400_000, 30 * time.Second, 200_000, 400_000, 45 * time.Second},
	} {
		k := &looseForeignKeys{config: Config{MaxDeletes: test.deletes, MaxUpdates: test.updates, MaxRuntime: test.runtime}}
		deletes, updates := k.maxRows(true)
		runtime, turbo := k.maxRuntime("ci", map[string]bool{"loose_foreign_keys_turbo_mode_ci": true})
		if deletes != test.wantDeletes || updates != test.wantUpdates || runtime != test.wantRuntime || !turbo {
			t.Errorf("turbo mode of %+v: %d, %d, %s, %v", test, deletes, updates, runtime, turbo)
		}
		if runtime, turbo := k.maxRuntime("main", map[string]bool{"loose_foreign_keys_turbo_mode_ci": true}); runtime != test.runtime || turbo {
			t.Errorf("the flag of ci changes main: %s", runtime)
		}
	}
}
