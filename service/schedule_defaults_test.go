package service

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
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

func TestStatus_SchedulerThatGivesNoSignOfLifeIsInTrouble(t *testing.T) {
	s := &Service{engine: &run.Runner{}}
	now := time.Now()
	trouble := func(h schedule.Heartbeat) Failing { return s.schedulerProblem(context.Background(), h) }
	if f := trouble(schedule.Heartbeat{At: now.Add(time.Second - heartbeatTimeout)}); f != (Failing{}) {
		t.Errorf("%+v", f)
	}
	last := now.Add(-heartbeatTimeout)
	if f := trouble(schedule.Heartbeat{At: last}); f.Class != FailureScheduler || !f.Since.Equal(last) || f.Message == "" {
		t.Errorf("%+v, want trouble since %s", f, last)
	}
	began := now.Add(-time.Hour)
	broken := schedule.Heartbeat{At: now, Err: repo.ErrNotMigrated, FailingSince: began}
	if f := trouble(broken); f.Class != FailureSchema || !f.Since.Equal(began) {
		t.Errorf("%+v, want trouble since %s", f, began)
	}
	away := schedule.Heartbeat{At: now, Err: repo.ErrUnreachable, FailingSince: began}
	if f := trouble(away); f != (Failing{}) {
		t.Errorf("%+v: the status call asks main itself", f)
	}
}
