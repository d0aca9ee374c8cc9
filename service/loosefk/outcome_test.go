package loosefk

import (
	"testing"
	"testing/synctest"
	"time"
)

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
		if over := f.among(map[failingKey]bool{one: true, {"ci", "c.p_id -> p", "ci"}: true}); len(over) != 1 || over[0] != one {
			t.Errorf("failing are %v", over)
		}
		f.over(one)
		if !f.begins(one, "unreachable") || f.begins(two, "unreachable") {
			t.Error("what is over begins anew, and nothing else does")
		}
	})
}
