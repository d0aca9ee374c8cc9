package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// Whatever is in a file and in the environment: it is refused in words, or it is a configuration that
// reads the same again.
func FuzzLoad(f *testing.F) {
	for _, content := range []string{
		"", "listen: 127.0.0.1:0\n", "load:\n  lag: 10s\n  ignored: [a, b]\n  rate: 4GB\n", "workers:\n  sweep:\n    batch_size: 7\n",
		"databases:\n  main:\n    url: postgres://u@db/main\n  ci:\n    url: postgres://u@db/ci\n    replica_url: postgres://u@r/ci\n",
		"listen: [", "a: b\n", "workers:\n", "history:\n  keep: never\n", "- a\n", "--- a\n--- b\n", "listen: &a b\nmetrics_listen: *a\n",
	} {
		f.Add(content, "CARETAKER_LISTEN", "127.0.0.1:1")
	}
	f.Add("", "CARETAKER_WORKERS_SWEEP_BATCH_SIZE", "0x10")
	f.Add("", "CARETAKER_DATABASES_CI_URL", "postgres://%zz")
	f.Fuzz(func(t *testing.T, content, name, value string) {
		file := write(t, content)
		environ := []string{mainURL, name + "=" + value}
		first, err := loadWork(file, environ)
		if err != nil {
			assert.That(t, strings.TrimSpace(err.Error()) != "", "it is refused without words")
			return
		}
		second, err := loadWork(file, environ)
		assert.That(t, err == nil && reflect.DeepEqual(first, second), "read twice it is %+v and %+v, %v", first, second, err)
	})
}
