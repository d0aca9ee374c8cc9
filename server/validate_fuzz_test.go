package server

import (
	"encoding/base64"
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// Whatever a client sends as a token: it is refused, or it is the one of this list with these filters.
func FuzzPageToken(f *testing.F) {
	own, err := newPage("runs", &maintenancev1.ListRunsRequest{}, "a")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own.next("7"), "a", "7")
	f.Add("", "", "")
	f.Add("!", "a", "b")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(own.list+"\n")), "a", "x\ny")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(own.list+"\n7\n8")), "\"a", "9223372036854775808")
	f.Fuzz(func(t *testing.T, token, filter, key string) {
		p, err := newPage("runs", &maintenancev1.ListRunsRequest{PageToken: token}, filter)
		if err == nil && token != "" {
			decoded, _ := base64.RawURLEncoding.DecodeString(token)
			if string(decoded) != p.list+"\n"+p.after {
				t.Errorf("%q was read as %q of %q", token, p.after, p.list)
			}
			_, _ = p.afterNumber()
		}
		again, err := newPage("runs", &maintenancev1.ListRunsRequest{PageToken: p.next(key)}, filter)
		if ok := key != "" && printable("", key) == nil; (err == nil) != ok || ok && again.after != key {
			t.Errorf("the token behind %q leads behind %q: %v", key, again.after, err)
		}
		if _, err := newPage("runs", &maintenancev1.ListRunsRequest{PageToken: p.next("7")}, filter+"x"); err == nil {
			t.Error("a token is taken for a list with another filter")
		}
		if _, err := newPage("jobs", &maintenancev1.ListRunsRequest{PageToken: p.next("7")}, filter); err == nil {
			t.Error("a token is taken for another list")
		}
	})
}
