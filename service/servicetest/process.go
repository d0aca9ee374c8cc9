package servicetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	settings "github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// processVariable holds the order for such a process.
const processVariable = "CARETAKER_TEST_PROCESS"

// Order is one run in a process of its own.
type Order struct {
	// App is its application_name and the name of the replica.
	App string
	// Names and URLs of the databases, in the order of the rotation.
	Names, URLs []string
	// Replica is the URL of main's replica, "" for none.
	Replica string
	// Definitions is the path of a file, Configuration that of a file with all settings. "" means
	// none.
	Definitions, Configuration string
	BatchSize                  int
	MaxRuntime                 time.Duration
	// Database to run on.
	Database string
	// Worker to run. "" means loose_foreign_keys_cleanup. Jobs is a kind of job to be worked instead,
	// until the process is killed.
	Worker, Jobs string
	// Zone is the time zone of the process, "" for that of the test.
	Zone string
}

func (o Order) run(ctx context.Context) (run.Run, error) {
	config := service.Config{Replica: o.App, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for i, name := range o.Names {
		d, err := repo.Open(ctx, name, o.URLs[i])
		if err != nil {
			return run.Run{}, err
		}
		defer d.Close()
		if o.Replica != "" && name == "main" {
			if err := d.UseReplica(ctx, o.Replica, config.Logger); err != nil {
				return run.Run{}, err
			}
		}
		config.Databases = append(config.Databases, d)
	}
	*service.Settings[lfk.Config](&config) = lfk.Config{BatchSize: o.BatchSize, MaxRuntime: o.MaxRuntime}
	*service.Settings[placeholder.Config](&config) = placeholder.Config{BatchSize: o.BatchSize}
	*service.Settings[token.Config](&config) = token.Config{BatchSize: o.BatchSize, MaxRuntime: o.MaxRuntime}
	if o.Definitions != "" {
		var err error
		if service.Settings[lfk.Config](&config).Definitions, err = lfk.LoadDefinitions(o.Definitions); err != nil {
			return run.Run{}, err
		}
	}
	if o.Configuration != "" {
		if _, err := settings.OfProcess().LoadPartial(o.Configuration, &config); err != nil {
			return run.Run{}, err
		}
	}
	queue, err := scheduler.NewQueue(config.Databases[0], scheduler.QueueConfig{PollInterval: 50 * time.Millisecond})
	if err != nil {
		return run.Run{}, err
	}
	config.Queue = queue
	settings.Defaults(&config)
	s, err := service.New(config) //nolint:contextcheck // it needs none
	if err != nil {
		return run.Run{}, err
	}
	if o.Jobs != "" {
		if err := queue.Start(OnlyKind{s, o.Jobs}); err != nil { //nolint:contextcheck // it lives as long as this process
			return run.Run{}, err
		}
		select {}
	}
	run, err := s.RunBatch(ctx, run.Request{Worker: cmp.Or(o.Worker, LooseForeignKeys), Database: o.Database})
	return run, errors.Join(err, s.Shutdown(ctx))
}

// Result is what it reports at its end.
type Result struct {
	Run   run.Run
	Error string
}

// obey does what an order reports, if this process has got one, and ends it.
func obey() {
	order := os.Getenv(processVariable)
	if order == "" {
		return
	}
	var o Order
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		panic(err)
	}
	if o.Zone != "" {
		checkZone(o.Zone)
	}
	result := Result{}
	var err error
	if result.Run, err = o.run(context.Background()); err != nil {
		result.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// Process is a run in a process of its own.
type Process struct {
	t       *testing.T
	command *exec.Cmd
	output  io.ReadCloser
	Log     *Buffer
}

// Start begins a run on main under an application_name.
func (e *Estate) Start(app, definitions string, change ...func(*Order)) *Process {
	e.T.Helper()
	o := Order{App: app, Definitions: Save(e.T, definitions), Database: "main"}
	for _, d := range e.Open {
		o.Names, o.URLs = append(o.Names, d.Name), append(o.URLs, cmp.Or(e.Through[d.Name], e.URLs[d.Name])+"&application_name="+app)
	}
	for _, c := range change {
		c(&o)
	}
	order, err := json.Marshal(o)
	if err != nil {
		e.T.Fatal(err)
	}
	p := &Process{t: e.T, command: exec.Command(os.Args[0]), Log: &Buffer{}}
	p.command.Env = append(os.Environ(), processVariable+"="+string(order))
	if o.Zone != "" {
		p.command.Env = append(p.command.Env, "TZ="+o.Zone)
	}
	p.command.Stderr = p.Log
	if verbose() {
		p.command.Stderr = io.MultiWriter(p.Log, os.Stderr)
	}
	if p.output, err = p.command.StdoutPipe(); err != nil {
		e.T.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(p.Kill)
	return p
}

// Signal stops, continues or kills the process.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Kill ends it without a chance to clean up.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// Result waits for the end of the process.
func (p *Process) Result() (r Result) {
	p.t.Helper()
	late := time.AfterFunc(devdb.WaitTimeout, func() { _ = p.command.Process.Kill() })
	defer late.Stop()
	if err := json.NewDecoder(p.output).Decode(&r); err != nil {
		p.t.Fatal(fmt.Errorf("the process printed no result: %w", err))
	}
	return r
}

// ShortRun makes a run of ten seconds at most: its lease holds for 20.
func ShortRun(o *Order) { o.MaxRuntime = 10 * time.Second }

// AfterExpiry runs the worker on main as soon as the lease of a dead process has expired.
func (e *Estate) AfterExpiry(s *service.Service, holder string) (r run.Run) {
	e.T.Helper()
	devdb.Eventually(e.T, "the lease of "+holder+" to expire", func() bool {
		var err error
		r, err = s.RunBatch(context.Background(), run.Request{Worker: LooseForeignKeys, Database: "main"})
		var held *fault.LeaseHeldError
		if !errors.As(err, &held) && err != nil {
			e.T.Fatal(err)
		}
		if held != nil && (held.Lease.Holder != holder || held.Remaining > 20*time.Second) {
			e.T.Fatalf("got %+v, want a lease that %s holds for at most 20 s", held, holder)
		}
		return err == nil
	})
	return r
}

// WorksGroups makes the process work destroy_group jobs until it is killed.
func WorksGroups(o *Order) { o.Definitions, o.Database, o.Jobs = "", "", "destroy_group" }
