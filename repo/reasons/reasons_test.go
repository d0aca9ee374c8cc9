package reasons

import "testing"

func TestReason_ReadsWhatItHasWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Reason{
		"":                               {},
		"LEASE_LOST":                     {Code: "LEASE_LOST"},
		"THROTTLED: main: 9 s, over 5 s": {Code: "THROTTLED", Detail: "main: 9 s, over 5 s"},
		"1 users failed":                 {Detail: "1 users failed"},
		"in words: with a colon":         {Detail: "in words: with a colon"},
	} {
		if got := Read(text); got != want || got.String() != text {
			t.Errorf("%q: %+v, %q", text, got, got.String())
		}
	}
}
