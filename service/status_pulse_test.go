package service

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPulse_SchedulerThatGivesNoSignOfLifeIsInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.beat(Failing{})
		for range 3 {
			time.Sleep(pulsePatience - time.Second)
			if f := p.trouble(); f != (Failing{}) {
				t.Errorf("%+v", f)
			}
			p.beat(Failing{})
		}
		last := time.Now()
		time.Sleep(pulsePatience)
		if f := p.trouble(); f.Class != FailureScheduler || !f.Since.Equal(last) || f.Message == "" {
			t.Errorf("%+v, want trouble since %s", f, last)
		}

		began := time.Now()
		for range 3 {
			p.beat(Failing{Class: FailureSchema, Message: "broken"})
			time.Sleep(time.Second)
		}
		if f := p.trouble(); f.Class != FailureSchema || !f.Since.Equal(began) {
			t.Errorf("%+v, want trouble since %s", f, began)
		}
		p.beat(Failing{Class: FailureUnreachable, Message: "away"})
		if f := p.trouble(); f != (Failing{}) {
			t.Errorf("%+v: the status call asks main itself", f)
		}
	})
}
