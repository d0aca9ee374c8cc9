package service_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// replica is a service of its own, with a queue that is worked, on databases that may go away.
type replica struct {
	*service.Service
	main *repo.Database
	stop func()
}

// newReplica starts one on main, by a URL. It runs the workers again and again until the test's end, or until stop.
func newReplica(e *servicetest.Estate, name, mainURL, definitions string, workers ...string) *replica {
	e.T.Helper()
	d := servicetest.Open(e.T, mainURL)
	q := assert.Must(scheduler.NewQueue(d, scheduler.QueueConfig{PollInterval: 20 * time.Millisecond}))(e.T)
	s := e.Service(definitions, servicetest.Batches(20, 0), func(c *service.Config) {
		c.Databases, c.Replica, c.Queue = []*repo.Database{d}, name, q
		service.Settings[placeholder.Config](c).Interval = time.Millisecond
	})
	assert.NoError(e.T, q.Start(s))
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for _, w := range workers {
		loops.Go(func() { again(ctx, e.T, s, w) })
	}
	stop := sync.OnceFunc(func() {
		cancel()
		loops.Wait()
		assert.NoError(e.T, q.Stop(context.Background()))
	})
	e.T.Cleanup(stop)
	return &replica{s, d, stop}
}

// again runs a worker again and again. Any error must be one of those that an outage explains.
func again(ctx context.Context, t *testing.T, s *service.Service, worker string) {
	t.Helper()
	for pace := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-pace.C {
		_, err := s.RunBatch(context.WithoutCancel(ctx), run.Request{Worker: worker})
		var held *fault.LeaseHeldError
		assert.That(t, err == nil || errors.Is(err, fault.ErrUnreachable) || errors.As(err, &held), "%s: %v", worker, err)
	}
}

// wantUnreachable fails the test unless every worker of a replica reports in the end that main is
// unreachable. It compares the text, and since when it was.
func (r *replica) wantUnreachable(t *testing.T, from time.Time, words string) {
	t.Helper()
	var last []status.Worker
	devdb.Eventually(t, "every worker to say that main is unreachable", func() bool {
		var err error
		if last, err = r.Status(context.Background(), ""); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(last, func(st status.Worker) bool {
			return st.Failing == nil || st.Failing.Class != status.FailureUnreachable || !strings.Contains(st.Failing.Message, words)
		})
	})
	for _, st := range last {
		f := st.Failing
		assert.That(t, st.Condition == status.ConditionFailing && f.Database == "main" && !f.Since.Before(from) && !f.Since.After(time.Now()),
			"%s: %s since %s (%s), want unreachable since %s or later", st.Worker, st.Condition, f.Since, f.Database, from)
	}
	// A statement that was answered just before is believed for 2.5 s.
	devdb.Eventually(t, "health to say so", func() bool {
		return errors.Is(r.Healthy(context.Background()), fault.ErrUnreachable)
	})
}

// wantBack waits until a replica can work again, and logs how long that took.
func (r *replica) wantBack(t *testing.T, from time.Time) {
	t.Helper()
	devdb.Eventually(t, "main to be reachable", func() bool { return r.Healthy(context.Background()) == nil })
	took := time.Since(from)
	devdb.Eventually(t, "no worker to say that main is unreachable", func() bool {
		all := assert.Must(r.Status(context.Background(), ""))(t)
		return !slices.ContainsFunc(all, func(st status.Worker) bool {
			return st.Failing != nil && strings.HasPrefix(st.Failing.Message, "database main: unreachable")
		})
	})
	t.Logf("back after %s, by every status after %s", took.Round(time.Millisecond), time.Since(from).Round(time.Millisecond))
}

// proxy is an address that leads to a server, and from now on to another one. Connections stay where they are.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	target   string
	open     map[net.Conn]struct{}
	copies   sync.WaitGroup
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	listener := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &proxy{listener: listener, open: map[net.Conn]struct{}{}}
	p.copies.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			p.copies.Go(func() { p.lead(in) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.copies.Wait()
	})
	return p
}

// url is that of a database behind the proxy, to which it leads from now on.
func (p *proxy) url(t *testing.T, to string) string {
	t.Helper()
	u := assert.Must(url.Parse(to))(t)
	p.mu.Lock()
	p.target = u.Host
	p.mu.Unlock()
	u.Host = p.listener.Addr().String()
	return u.String()
}

// cut breaks the connections that there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

func (p *proxy) lead(in net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	out, err := net.Dial("tcp", target)
	if err != nil {
		_ = in.Close()
		return
	}
	p.mu.Lock()
	p.open[in], p.open[out] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.open, in)
	delete(p.open, out)
	p.mu.Unlock()
}
