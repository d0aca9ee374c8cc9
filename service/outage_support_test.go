package service_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
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
		service.Settings[placeholderuser.Config](c).Interval = time.Millisecond
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

// again runs a worker again and again. Whatever it meets must be one of the errors that an outage explains.
func again(ctx context.Context, t *testing.T, s *service.Service, worker string) {
	t.Helper()
	for pace := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-pace.C {
		_, err := s.RunBatch(context.WithoutCancel(ctx), service.RunRequest{Worker: worker})
		var held *service.LeaseHeldError
		assert.That(t, err == nil || errors.Is(err, service.ErrUnreachable) || errors.As(err, &held), "%s: %v", worker, err)
	}
}

// wantUnreachable fails the test unless every worker of a replica says in the end that main is unreachable, in these
// words, and since when it was.
func (r *replica) wantUnreachable(t *testing.T, from time.Time, words string) {
	t.Helper()
	var last []service.WorkerStatus
	devdb.Eventually(t, "every worker to say that main is unreachable", func() bool {
		var err error
		if last, err = r.Status(context.Background(), ""); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(last, func(st service.WorkerStatus) bool {
			return st.Failing == nil || st.Failing.Class != service.FailureUnreachable || !strings.Contains(st.Failing.Message, words)
		})
	})
	for _, st := range last {
		f := st.Failing
		assert.That(t, st.Condition == service.ConditionFailing && f.Database == "main" && !f.Since.Before(from) && !f.Since.After(time.Now()),
			"%s: %s since %s (%s), want unreachable since %s or later", st.Worker, st.Condition, f.Since, f.Database, from)
	}
	isError(t, "healthy", r.Healthy(context.Background()), service.ErrUnreachable)
}

// wantBack waits until a replica can work again, and logs how long that took.
func (r *replica) wantBack(t *testing.T, from time.Time) {
	t.Helper()
	devdb.Eventually(t, "main to be reachable", func() bool { return r.Healthy(context.Background()) == nil })
	took := time.Since(from)
	devdb.Eventually(t, "no worker to say that main is unreachable", func() bool {
		all := assert.Must(r.Status(context.Background(), ""))(t)
		return !slices.ContainsFunc(all, func(st service.WorkerStatus) bool {
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

// audited notes every deletion or insertion of a table's rows, with the row.
func audited(e *servicetest.Estate, table, event, row, sleep string) {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE IF NOT EXISTS audit (what text, row text, app text DEFAULT current_setting('application_name'))`)
	e.Exec("main", fmt.Sprintf(`CREATE FUNCTION audit_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_sleep(%[4]s); INSERT INTO audit VALUES ('%[1]s', %[3]s); RETURN coalesce(NEW, OLD); END $$`, table, event, row, sleep))
	e.Exec("main", fmt.Sprintf(`CREATE TRIGGER audit BEFORE %[2]s ON %[1]s FOR EACH ROW EXECUTE FUNCTION audit_%[1]s()`, table, event))
}

// scheduled lets the replicas look at the fires again and again, through whatever befalls main. The function that is
// returned ends that and fails the test unless fires are run again by themselves, every fire has come to its end, and
// every one that ran has its run.
func scheduled(e *servicetest.Estate, replicas ...*replica) (check func()) {
	e.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var looks sync.WaitGroup
	for _, r := range replicas {
		looks.Go(func() { checkOften(ctx, e, r) })
	}
	ended := sync.OnceFunc(func() {
		stop()
		looks.Wait()
	})
	e.T.Cleanup(ended)
	return func() {
		e.T.Helper()
		devdb.Eventually(e.T, "a fire to be run", func() bool {
			passMinute(e)
			return e.Value("main", `SELECT count(*) > 0 FROM maintenance.fires WHERE outcome = 'ran'`) == "true"
		})
		ended()
		e.T.Log(e.Value("main", `SELECT string_agg(concat_ws(' ', worker, outcome, reason, n), ', ') FROM
			(SELECT worker, outcome, left(reason, 12) AS reason, count(*) n FROM maintenance.fires GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) f`))
		// One whose lease somebody else has is claimed as run, and then refused.
		e.Eventually("main", `SELECT count(*) FROM maintenance.fires f LEFT JOIN maintenance.runs r ON r.id = f.run_id AND r.worker = f.worker
			WHERE f.outcome = 'ran' AND (r.id IS NULL OR r.lease_epoch = 0)`, "0")
		e.Want("main", `SELECT count(*) FROM maintenance.runs r WHERE r.trigger = 'schedule'
			AND NOT EXISTS (SELECT FROM maintenance.fires f WHERE f.run_id = r.id)`, "0")
	}
}

// passMinute makes the fire of this minute due anew, for each worker whose last one has come to something.
func passMinute(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `WITH done AS (
			SELECT s.worker FROM maintenance.schedules s
			LEFT JOIN maintenance.fires c ON c.worker = s.worker AND c.fire_time > now() - interval '10 min'
			LEFT JOIN maintenance.runs r ON r.id = c.run_id
			WHERE s.cron = '* * * * *'
			GROUP BY s.worker HAVING coalesce(bool_and(r.id IS NULL OR r.state <> 'running' OR r.lease_epoch > 0), true)
		), shifted AS (
			UPDATE maintenance.fires c SET fire_time = c.fire_time - interval '1 h' - random() * interval '1 h' FROM done
			WHERE c.worker = done.worker AND c.fire_time > now() - interval '10 min'
		)
		UPDATE maintenance.schedules s SET accounted_until = date_trunc('minute', clock_timestamp()) - interval '1 s' FROM done WHERE done.worker = s.worker`)
}

// checkOften checks the fires, and closes the runs of the dead.
func checkOften(ctx context.Context, e *servicetest.Estate, r *replica) {
	for pace := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-pace.C {
		// One that waits for the next minute must not hold up the test.
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond) //nolint:gocritic // elapses: no wait for the next minute
		err := errors.Join(r.RunDue(bounded), r.ResumeRuns(ctx))
		cancel()
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, service.ErrUnreachable) {
			e.T.Logf("check: %v", err)
		}
	}
}
