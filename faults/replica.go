package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// replica is a server in a process of its own, with a network that can break.
type replica struct {
	// name is its application_name, by which the rules tell the replicas apart: it must be unique, and
	// neither faults nor application.
	name, dir, program string
	// skew is by how many seconds its clock is wrong.
	skew    int
	lab     *lab
	network map[string]*proxy

	mu      sync.Mutex
	process *exec.Cmd
	ended   chan struct{}
	conn    *grpc.ClientConn
	client  maintenancev1.MaintenanceServiceClient
	// up is while the process serves, frozen while it is stopped.
	up, frozen bool
	// ending: the process was told to end. failures are what it did against our will.
	ending   bool
	failures []string
}

func newReplica(ctx context.Context, l *lab, dir, program string, number int) (*replica, error) {
	r := &replica{
		name: fmt.Sprintf("replica%d", number), dir: dir, program: program, lab: l, network: map[string]*proxy{},
		skew: []int{0, 420, -420}[number%3],
	}
	for _, name := range databases() {
		p, err := newProxy(ctx, l.primary.URL(name))
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.network[name] = p
	}
	return r, nil
}

// ghostRuntime lets one worker run for longer than its lease waits for its first renewal, which is a third
// of this time and run.LeaseMargin.
const ghostRuntime = 20 * time.Second

// settings are small batches and no pauses, so that faults find something to interrupt.
func (r *replica) settings(configured bool) ([]string, error) {
	env := []string{
		"CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN=", clockVariable + "=" + fmt.Sprint(r.skew),
		"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_BATCH_SIZE=2", "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_MAX_RUNTIME=2s",
		"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_ROTATION=all", "CARETAKER_WORKERS_GHOST_USER_MIGRATION_MAX_RUNTIME=" + ghostRuntime.String(),
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_BATCH_SIZE=2", "CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_MAX_RUNTIME=2s",
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_CONTINUE_AFTER=1s", "CARETAKER_WORKERS_ADJOURNED_GROUP_DELETION_BATCH_SIZE=2",
		"CARETAKER_WORKERS_ADJOURNED_GROUP_DELETION_INTERVAL=10ms", "CARETAKER_WORKERS_PLACEHOLDER_USER_CLEANUP_BATCH_SIZE=2",
		"CARETAKER_WORKERS_PLACEHOLDER_USER_CLEANUP_INTERVAL=10ms",
		"CARETAKER_DATABASES_MAIN_REPLICA_URL=" + r.lab.standby.URL("main") + "&application_name=" + r.name,
	}
	for name, network := range r.network {
		url, err := network.url(r.lab.primary.URL(name))
		if err != nil {
			return nil, err
		}
		env = append(env, "CARETAKER_DATABASES_"+upper(name)+"_URL="+url+"&application_name="+r.name)
	}
	for _, worker := range workers() {
		env = append(env, "CARETAKER_WORKERS_"+upper(worker)+"_SCHEDULE=* * * * *")
	}
	if configured {
		env = append(env, "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS="+r.lab.definitions)
	}
	return env, nil
}

// start starts the process and waits until it serves. not configured: without the definitions.
func (r *replica) start(ctx context.Context, configured bool) error {
	settings, err := r.settings(configured)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(r.dir, r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	process := exec.Command(r.program, "serve") //nolint:noctx // the harness ends it
	process.Env = append([]string{"PATH=/usr/bin:/bin", "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}, settings...)
	lines, err := process.StdoutPipe()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	process.Stderr = process.Stdout
	if err := process.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	address, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		scanner := bufio.NewScanner(lines)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			_, _ = fmt.Fprintln(log, scanner.Text())
			var line struct{ Msg, Listen string }
			if json.Unmarshal(scanner.Bytes(), &line) == nil && line.Msg == "serving" {
				select {
				case address <- line.Listen:
				default:
				}
			}
		}
		err := process.Wait()
		_ = log.Close()
		r.mu.Lock()
		if !r.ending {
			r.failures = append(r.failures, fmt.Sprintf("%s exited unasked: %v, see %s", r.name, err, log.Name()))
		}
		r.mu.Unlock()
	}()
	r.mu.Lock()
	r.process, r.ended, r.ending = process, ended, false
	r.mu.Unlock()
	select {
	case at := <-address:
		return r.connect(at)
	case <-ended:
		return fmt.Errorf("%s ended at its start: see %s", r.name, log.Name())
	case <-time.After(devdb.WaitTimeout):
		return fmt.Errorf("%s does not serve: see %s", r.name, log.Name())
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *replica) connect(address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		_ = r.conn.Close()
	}
	r.conn, r.client, r.up, r.frozen = conn, maintenancev1.NewMaintenanceServiceClient(conn), true, false
	return err
}

// freeze stops the process until thaw. false means that it is stopped already, or does not serve.
func (r *replica) freeze() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.up || r.frozen {
		return false
	}
	r.frozen = true
	_ = r.process.Process.Signal(syscall.SIGSTOP)
	return true
}

func (r *replica) thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process != nil {
		_ = r.process.Process.Signal(syscall.SIGCONT)
	}
	r.frozen = false
}

// end sends a signal to a process that runs, and waits for its end.
func (r *replica) end(s syscall.Signal) {
	r.mu.Lock()
	process, ended := r.process, r.ended
	r.up, r.ending = false, true
	r.mu.Unlock()
	if process == nil {
		return
	}
	_ = process.Process.Signal(s)
	select {
	case <-ended:
	case <-time.After(90 * time.Second):
		_ = process.Process.Kill()
		<-ended
		r.mu.Lock()
		r.failures = append(r.failures, r.name+" did not end within 90 seconds of being told to")
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.process = nil
	r.mu.Unlock()
}

// request asks for a run of any worker. The databases show its effect.
func (r *replica) request(ctx context.Context, random *rand.Rand) {
	r.mu.Lock()
	client, up := r.client, r.up && !r.frozen
	r.mu.Unlock()
	if !up {
		time.Sleep(10 * time.Millisecond)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q := &maintenancev1.RunBatchRequest{Worker: workers()[random.IntN(len(workers()))]}
	if q.GetWorker() == lfk.Name && random.IntN(2) == 0 {
		q.Database = databases()[random.IntN(3)]
	}
	// Four of these make up to 40 requests a second. A server refuses more than 20, after the first
	// 200. Refused ones do not matter.
	_, _ = client.RunBatch(ctx, q)
	time.Sleep(100 * time.Millisecond)
}

// call calls the replica as long as it serves and is not frozen.
func (r *replica) call(do func(maintenancev1.MaintenanceServiceClient) error) error {
	r.mu.Lock()
	client, up := r.client, r.up && !r.frozen
	r.mu.Unlock()
	if !up {
		return errors.New(r.name + " does not serve")
	}
	return do(client)
}

func (r *replica) close() (err error) {
	r.end(syscall.SIGKILL)
	for _, p := range r.network {
		err = errors.Join(err, p.Close())
	}
	if r.conn != nil {
		err = errors.Join(err, r.conn.Close())
	}
	return err
}
