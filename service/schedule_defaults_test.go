package service

import (
	"context"
	"testing"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
)

func TestCatchUp_IsOnForDailyWorkersUnlessConfigured(t *testing.T) {
	d, err := repo.Open(context.Background(), "main", "postgres://nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := Config{Databases: []*repo.Database{d}}
	config.Defaults(&c)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	for _, w := range s.engine.Workers {
		daily := w.Config.Schedule[0] == '0'
		if w.CatchesUp() != daily {
			t.Errorf("%s (%s) catches up: %t", w.Name, w.Config.Schedule, !daily)
		}
		w.Config.CatchUp = new(!daily)
		if w.CatchesUp() == daily {
			t.Errorf("%s does not do as it is configured", w.Name)
		}
	}
}
