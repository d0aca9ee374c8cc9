package sparse_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/sparse"
)

func TestNew_PassesWarningsOnceAMinute(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	log := slog.New(sparse.New(slog.NewTextHandler(&said, nil), nil))
	for n := range 50 {
		log.With("n", n).Error("down")
		log.WithGroup("g").Warn("also down")
		log.Info("of no importance")
	}
	assert.Equal(t, strings.Count(said.String(), "\n"), 2, "lines logged")
}
