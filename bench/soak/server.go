package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is a process of caretaker serve.
type server struct {
	name              string
	process           *exec.Cmd
	api, metrics, web string
	ended             chan error

	mu sync.Mutex
	// heap is what was live after the last garbage collection, in MB. errors are lines of the log.
	heap, errors float64
}

// startTimeout is how long a server may take until it serves, stopTimeout until it has ended.
const startTimeout, stopTimeout = 2 * time.Minute, 30 * time.Second

// startServer returns when the server serves. GODEBUG lets it write a line for each garbage collection, with the live heap.
func (e *estate) startServer(ctx context.Context, name string) (*server, error) {
	s := &server{name: name, ended: make(chan error, 1)}
	s.process = exec.CommandContext(context.WithoutCancel(ctx), e.program, "serve", "--config", e.config(name))
	// An interrupt of the soak at a terminal does not interrupt the server, which is stopped in order.
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.process.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	lines, err := s.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(e.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	serving := make(chan struct{})
	go func() {
		s.follow(lines, log, serving)
		s.ended <- errors.Join(s.process.Wait(), log.Close())
	}()
	select {
	case <-serving:
		return s, nil
	case err := <-s.ended:
		return nil, fmt.Errorf("%s did not start, see %s: %w", name, log.Name(), err)
	case <-time.After(startTimeout):
		return nil, errors.Join(fmt.Errorf("%s does not serve after %s, see %s", name, startTimeout, log.Name()), s.process.Process.Kill())
	}
}

// collected is a line about a garbage collection. The third size is the live heap.
var collected = regexp.MustCompile(`^gc \d+ @.* \d+->\d+->(\d+) MB`)

// follow copies the log until its end, and takes from it what is of interest.
func (s *server) follow(lines io.Reader, log io.Writer, serving chan<- struct{}) {
	in := bufio.NewScanner(lines)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		fmt.Fprintln(log, in.Text())
		var line struct {
			Level, Msg, Listen string
			Metrics            string `json:"metrics_listen"`
			Web                string `json:"web_listen"`
		}
		found := collected.FindStringSubmatch(in.Text())
		// The runtime writes a line about a collection in pieces: a line of the log may lie between them.
		_, object, _ := strings.Cut(in.Text(), "{")
		_ = json.Unmarshal([]byte("{"+object), &line)
		s.mu.Lock()
		switch {
		case found != nil:
			s.heap, _ = strconv.ParseFloat(found[1], 64)
		case line.Level == "ERROR":
			s.errors++
		case line.Msg == "serving":
			s.api, s.metrics, s.web = line.Listen, line.Metrics, line.Web
			close(serving)
		}
		s.mu.Unlock()
	}
}

// stop ends the server as a deployment does.
func (s *server) stop() error {
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-s.ended:
		return err
	case <-time.After(2 * stopTimeout):
		return errors.Join(fmt.Errorf("%s does not end when asked to", s.name), s.process.Process.Kill())
	}
}

// figures are a server's metrics: by name, summed over their labels, and once more for each outcome, as NAME/OUTCOME.
type figures map[string]float64

func (s *server) read(ctx context.Context) (figures, error) {
	body, err := get(ctx, "http://"+s.metrics+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", s.name, err)
	}
	f := parseFigures(string(body))
	s.mu.Lock()
	defer s.mu.Unlock()
	f["heap"], f["log_errors"] = s.heap, s.errors
	return f, nil
}

func parseFigures(text string) figures {
	f := figures{}
	for line := range strings.Lines(text) {
		cut := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || cut < 0 {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[cut:]), 64)
		if err != nil {
			continue
		}
		name, labels, _ := strings.Cut(line[:cut], "{")
		f[name] += value
		if _, outcome, ok := strings.Cut(labels, `outcome="`); ok {
			outcome, _, _ = strings.Cut(outcome, `"`)
			f[name+"/"+outcome] += value
		}
	}
	return f
}

// plus adds what another process has counted.
func (f figures) plus(other figures) figures {
	sum := maps.Clone(f)
	for name, value := range other {
		sum[name] += value
	}
	return sum
}

// get reads a page of a server.
func get(ctx context.Context, url string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return io.ReadAll(answer.Body)
}
