package devdb

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed supervise.sh
var supervise string

// stopTimeout is how long a fast shutdown may take before the server is told
// to quit at once. supervise.sh has the same limit.
const stopTimeout = 20 * time.Second

// server is the postmaster and our hold on it.
type server struct {
	pid  int
	hold *os.File      // closing it makes the supervisor stop the server
	done chan struct{} // closed when our child has ended
	once sync.Once
	err  error // of stop
}

// supervised starts the supervising shell with the other end of hold as its
// standard input. The shell becomes the server, if command names one.
func supervised(ctx context.Context, f folder, owner account, remove bool, pid int, command ...string) (*exec.Cmd, *os.File, error) {
	read, hold, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = read.Close() }()
	log, err := os.OpenFile(f.file("postgres.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, errors.Join(err, hold.Close())
	}
	defer func() { _ = log.Close() }()
	removed, running := "", ""
	if remove {
		removed = f.path
	}
	if pid != 0 {
		running = strconv.Itoa(pid)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", supervise, "supervise", f.data(), removed, running}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, log, log
	cmd.Env, cmd.Dir, cmd.SysProcAttr = environment(), "/", owner.attr()
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot start %s as user %s: %w", command, owner.name, err), hold.Close())
	}
	return cmd, hold, nil
}

// environment keeps the caller's locale, PGPORT and the like away from the server.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// wait reaps the child in the background until it ends.
func (s *server) wait(cmd *exec.Cmd) {
	s.pid, s.done = cmd.Process.Pid, make(chan struct{})
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // the exit status is told by the log
	}()
}

func (s *server) stop(ctx context.Context, f folder) error {
	s.once.Do(func() {
		if f.names(s.pid) {
			s.err = halt(ctx, f, s.pid)
		}
		s.err = errors.Join(s.err, s.release())
		if s.err == nil {
			<-s.done
		}
	})
	return s.err
}

// release ends the supervision. Only a dead owner's folder is removed for it.
func (s *server) release() error {
	if s.hold == nil {
		return nil
	}
	_, _ = s.hold.WriteString("keep\n") // fails only when no supervisor is left
	return s.hold.Close()
}

// halt stops the folder's server: fast, and when that takes too long or ctx
// ends, at once.
func halt(ctx context.Context, f folder, pid int) error {
	if gone, err := signal(ctx, f, pid, syscall.SIGINT, stopTimeout); gone || err != nil {
		return err
	}
	for _, harder := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if gone, err := signal(context.WithoutCancel(ctx), f, pid, harder, 5*time.Second); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("the server (process %[1]d) does not stop: stop process %[1]d manually", pid)
}

// signal sends the signal and reports whether the server stopped in time.
func signal(ctx context.Context, f folder, pid int, number syscall.Signal, limit time.Duration) (bool, error) {
	if err := syscall.Kill(pid, number); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, fmt.Errorf("cannot stop the server (process %d): %w", pid, err)
	}
	return waits(ctx, limit, func() bool { return !f.names(pid) || !alive(pid) }), nil
}

// waits reports whether something came to hold before the limit and the end of ctx.
func waits(ctx context.Context, limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); !holds(); {
		if pause(ctx, end) != nil {
			return false
		}
	}
	return true
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// postmasterFile is what a server records about itself in its data directory.
type postmasterFile struct{ pid, port int }

func (f folder) readPostmaster() (postmasterFile, bool) {
	file, err := os.Open(filepath.Join(f.data(), "postmaster.pid"))
	if err != nil {
		return postmasterFile{}, false
	}
	defer func() { _ = file.Close() }()
	var lines []string
	for scan := bufio.NewScanner(file); scan.Scan(); {
		lines = append(lines, strings.TrimSpace(scan.Text()))
	}
	if len(lines) < 4 {
		return postmasterFile{}, false
	}
	pid, pidErr := strconv.Atoi(lines[0])
	port, portErr := strconv.Atoi(lines[3])
	return postmasterFile{pid: pid, port: port}, pidErr == nil && portErr == nil && pid > 1
}

// names reports whether the folder's server is process pid.
func (f folder) names(pid int) bool {
	found, ok := f.readPostmaster()
	return ok && found.pid == pid
}

// proves connects and asks the server for its data directory, because the system may have reused a pid
// or a port since.
func proves(ctx context.Context, f folder, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var dir string
	if err := conn.QueryRow(ctx, "SELECT current_setting('data_directory')").Scan(&dir); err != nil {
		return err
	}
	if resolved, err := filepath.EvalSymlinks(f.data()); err != nil || dir != f.data() && dir != resolved {
		return fmt.Errorf("the server of another data directory, %s, uses this port", dir)
	}
	return nil
}
