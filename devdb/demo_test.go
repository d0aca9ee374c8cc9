package devdb

import (
	"testing"
	"time"
)

func TestDemo_Quick(t *testing.T) {
	urls := map[string]string{}
	for _, name := range []string{"main", "ci", "sec"} {
		urls[name] = databases.Clone(t, Template{Name: name, Schema: name})
	}
	s := time.Now()
	if err := LoadDemo(t.Context(), urls); err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(s))
}
