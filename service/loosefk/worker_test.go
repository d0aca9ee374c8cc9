package loosefk

import (
	"slices"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

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
		if got := starvedDatabases(c.schedule, c.n); !slices.Equal(got, c.starved) {
			t.Errorf("%s with %d databases: %v, want %v", c.schedule, c.n, got, c.starved)
		}
	}
}
