package lfk

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

func TestStatementSizes_FollowTheTimeThatStatementsTake(t *testing.T) {
	const out = true // a timeout
	type ms = time.Duration
	s := &childTask{key: lfk.Definition{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: lfk.AsyncDelete}, database: "main"}
	z := bulk.NewStatementSizes(0)
	for i, test := range []struct {
		took         ms
		timedOut     bool
		limit, found int64
		capped       bool
		empty        ms // how long a statement for no row takes. 0: it fails
		want         int64
		wantTime     ms
	}{
		{10, false, 1000, 1000, false, 0, 1000, 1000},     // not capped: nothing is learned
		{124, false, 1000, 1000, true, 0, 2000, 1000},     // capped and fast
		{10, false, 20, 20, true, 0, 2000, 1000},          // capped by something smaller
		{126, false, 2000, 2000, true, 0, 2000, 1000},     // fast enough
		{250, false, 2000, 2000, true, 250, 2000, 1000},   // the goal
		{500, false, 2000, 2000, true, 100, 750, 1000},    // in proportion, to three quarters of the goal
		{1, false, 750, 750, true, 0, 1500, 1000},         //
		{1, false, 1500, 1500, true, 0, 3000, 1000},       //
		{1, false, 3000, 3000, true, 0, 6000, 1000},       //
		{1, false, 6000, 6000, true, 0, 12000, 1000},      //
		{1, false, 12000, 12000, true, 0, 24000, 1000},    //
		{1, false, 24000, 24000, true, 0, 48000, 1000},    //
		{1, false, 48000, 48000, true, 0, 50000, 1000},    // the bound.
		{1, false, 50000, 50000, true, 0, 50000, 1000},    //
		{1000, false, 20000, 20000, false, 0, 3750, 1000}, //
		{400, false, 3750, 3750, true, 300, 3750, 1300},   // a smaller one would not be quicker.
		{400, false, 3750, 3750, true, 0, 7500, 1300},     // its rows take 100 ms.
		{2000, false, 7500, 7500, true, 500, 937, 1500},   // only the time for the rows is in proportion.
		{220, false, 937, 100, false, 0, 937, 1220},       // others were quicker: nothing takes longer than itself.
		{200, false, 937, 937, true, 0, 1874, 1200},       //
		{180, false, 937, 937, true, 0, 1874, 1000},       // too little to matter.
		{1000, out, 1874, 0, false, 900, 1874, 1900},      // more time instead of fewer rows.
		{1900, out, 1874, 0, false, 900, 937, 1900},       // the rows had a second.
		{1900, out, 937, 0, false, 9500, 937, 10_000},     // never more time than for a single row.
		{10_000, out, 937, 0, false, 9500, 468, 10_000},   //
		{2900, out, 468, 0, false, 0, 234, 1000},          // nothing is known.
		{1000, false, 234, 2, false, 0, 1, 1000},          // even one row may be slow.
		{1000, false, 1, 1, false, 0, 1, 1000},            //
		{1000, out, 1, 1, false, 0, 1, 1000},              //
		{100, false, 1, 1, true, 0, 2, 1000},              //
	} {
		z.Learn(s, bulk.Statement{
			Took: test.took * time.Millisecond, TimedOut: test.timedOut, Limit: test.limit, Found: test.found, Capped: test.capped,
			Empty: func() (time.Duration, error) {
				if test.empty == 0 {
					return 0, dberr.ErrUnreachable
				}
				return test.empty * time.Millisecond, nil
			},
		})
		if got, time := z.Get(s), z.Time(s)/time.Millisecond; got != test.want || time != test.wantTime {
			t.Errorf("after statement %d: %d rows in %d ms, want %d in %d", i, got, time, test.want, test.wantTime)
		}
	}
}

func TestStatementSizes_AreKeptForEachDefinitionAndHome(t *testing.T) {
	key := lfk.Definition{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: lfk.AsyncDelete}
	nullify := key
	nullify.OnDelete = lfk.AsyncNullify
	other := key
	other.Columns = []string{"q_id"}
	z := bulk.NewStatementSizes(0)
	z.Learn(&childTask{key: key, database: "main"}, bulk.Statement{
		TimedOut: true, Took: time.Second, Limit: 100, Empty: func() (time.Duration, error) { return 0, nil },
	})
	for name, s := range map[string]*childTask{
		"home": {key: key, database: "ci"}, "action": {key: nullify, database: "main"}, "column": {key: other, database: "main"},
	} {
		assert.That(t, z.Get(s) == bulk.FirstStatementRows, "another %s shares the size", name)
	}
	assert.Equal(t, z.Get(&childTask{key: key, database: "main"}), 50, "rows in the next run")
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
		k := &worker{config: Config{MaxDeletes: test.deletes, MaxUpdates: test.updates, MaxRuntime: test.runtime}}
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

func TestRotation_IsTheMinuteModuloTheDatabases(t *testing.T) {
	for minute, want := range map[int64][3]int{25772282: {0, 0, 2}, 25772283: {0, 1, 0}} {
		for n := 1; n <= 3; n++ {
			for _, second := range []int64{0, 59} {
				if got := run.Rotation(time.Unix(minute*60+second, 0), n); got != want[n-1] {
					t.Errorf("minute %d of %d databases: %d, want %d", minute, n, got, want[n-1])
				}
			}
		}
	}
}

func TestStarvedDatabases_HaveNoMinuteOfTheirTurn(t *testing.T) {
	for _, c := range []struct {
		schedule string
		n        int
		starved  []int
	}{
		{"* * * * *", 1, nil},
		{"* * * * *", 2, nil},
		{"* * * * *", 3, nil},
		{"*/2 * * * *", 1, nil},
		{"*/2 * * * *", 2, []int{1}},
		{"1-59/2 * * * *", 2, []int{0}},
		{"*/2 * * * *", 3, nil},
		{"*/3 * * * *", 2, nil},
		{"*/3 * * * *", 3, []int{1, 2}},
		{"*/6 * * * *", 3, []int{1, 2}},
		{"0 0 * * *", 2, []int{1}},
		{"0,1 4 * * *", 2, nil},
		{"0,1 4 * * *", 3, []int{2}},
		{"* 3 * * 1", 1, nil},
		{"* 3 * * 1", 3, nil},
		{"*/2 3 1 * *", 2, []int{1}},
		{"0 0 30 2 *", 2, nil},
		{"nonsense", 2, nil},
	} {
		if got := StarvedDatabases(c.schedule, c.n); !slices.Equal(got, c.starved) {
			t.Errorf("%s with %d databases: %v, want %v", c.schedule, c.n, got, c.starved)
		}
	}
}

func TestFailing_IsLoggedWhenItBeginsWhenItChangesAndOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		one, two := failingKey{"main", "c.p_id -> p", "ci"}, failingKey{"main", "d.p_id -> p", "ci"}
		for _, step := range []struct {
			after     time.Duration
			key       failingKey
			condition string
			want      bool
		}{
			{0, one, "unreachable", true},
			{time.Second, one, "unreachable", false},
			{0, two, "unreachable", true},
			{time.Minute, one, "42703 undefined_column", true},
			{0, one, "unreachable", false},
			{time.Hour - time.Minute - time.Second, one, "unreachable", true},
			{0, one, "42703 undefined_column", false},
			{time.Hour - time.Minute, two, "unreachable", true},
			{time.Minute, one, "unreachable", true},
		} {
			time.Sleep(step.after) //nolint:forbidigo // in a synctest bubble
			if got := f.begins(step.key, step.condition); got != step.want {
				t.Errorf("%v %s: begins %t, want %t", step.key, step.condition, got, step.want)
			}
		}
		over := f.among(map[failingKey]bool{one: true, {"ci", "c.p_id -> p", "ci"}: true})
		assert.That(t, len(over) == 1 && over[0] == one, "failing are %v", over)
		f.over(one)
		assert.That(t, f.begins(one, "unreachable") && !f.begins(two, "unreachable"),
			"what is over begins anew, and nothing else does")
	})
}
