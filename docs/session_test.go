package docs_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// session is the shell of one page. Exported variables of the page stay, as for a reader.
type session struct {
	t *testing.T
	// root stands for / where a page names files of its own.
	root string
	// urls are those of the databases that the page may name, by their names there.
	urls    map[string]string
	estate  *estate
	cluster *devdb.Cluster
	// ports are free ones, by those of the page.
	ports   map[string]string
	in      io.Writer
	out     *bufio.Reader
	steps   int
	serving *server
}

// server is a command that goes on: serve, dev or make run.
type server struct {
	pid int
	log string
}

var (
	databaseURL = regexp.MustCompile(`postgres(?:ql)?://(?:([\w-]+)(?::([\w-]+))?@)?[\w.:-]+/(\w+)(\?[^\s'"),}]*)?`)
	// ownFiles are the folders that a page's commands write to.
	ownFiles = regexp.MustCompile(
		`(^|[\s"'=:(])(/(?:etc/caretaker|etc/prometheus|var/lib/caretaker|var/opt/gitlab|var/backups|opt/gitlab|home/me)\b)`)
	longRunning = regexp.MustCompile(`^([A-Z_]+=\S+ +)*((bin/)?caretaker (serve|dev)|make run)\b`)
	listens     = regexp.MustCompile(`(?m)^listen:`)
)

// goesOn reports whether a command is one that only a signal ends.
func goesOn(line string) bool {
	return longRunning.MatchString(line) && !strings.Contains(line, "--help")
}

// newSession starts a shell in an empty folder.
func newSession(t *testing.T, e *estate, programs string) *session {
	t.Helper()
	root := assert.Must(os.MkdirTemp("", "caretaker-docs-"))(t)
	s := &session{
		t: t, root: root, estate: e, cluster: e.databases.Cluster(t),
		urls: map[string]string{}, ports: map[string]string{},
	}
	for _, port := range []string{"50051", "9464", "8080"} {
		s.ports[port] = freePort(t)
	}
	home := filepath.Join(root, "home", "me")
	for _, dir := range []string{home, root + "/etc/caretaker", root + "/var/lib/caretaker"} {
		assert.NoError(t, os.MkdirAll(dir, 0o755))
	}
	assert.NoError(t, os.Symlink(programs, filepath.Join(home, "bin")))
	shell := exec.Command("bash", "--norc", "--noprofile")
	shell.Dir = home
	shell.Env = s.environment(home, programs)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in := assert.Must(shell.StdinPipe())(t)
	out := assert.Must(shell.StdoutPipe())(t)
	assert.NoError(t, shell.Start())
	s.in, s.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		s.stopServing()
		_ = in.Close()
		if t.Failed() { // a command may hang
			_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		}
		_ = shell.Wait()
		_ = os.RemoveAll(root)
	})
	return s
}

// lastPort is the last port that freePort has returned, less firstPort.
var lastPort atomic.Uint32

// freePort chooses from ports below the ephemeral range: the server of a page listens some time after
// its port was chosen.
const firstPort, ports = 12000, 16000

func freePort(t *testing.T) string {
	t.Helper()
	lastPort.CompareAndSwap(0, rand.Uint32N(ports))
	for range ports {
		port := strconv.Itoa(int(firstPort + lastPort.Add(1)%ports))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

func (s *session) environment(home, programs string) []string {
	u := assert.Must(url.Parse(s.cluster.URL("postgres")))(s.t)
	password, _ := u.User.Password()
	env := []string{
		"HOME=" + home, "PATH=" + programs + ":" + os.Getenv("PATH"), "LANG=C.UTF-8", "USER=me",
		"PGHOST=" + u.Hostname(), "PGPORT=" + u.Port(), "PGUSER=" + u.User.Username(),
		"PGPASSWORD=" + password, "PGDATABASE=postgres", "PGSSLMODE=disable", "PSQLRC=/dev/null",
		"CARETAKER_ADDRESS=127.0.0.1:" + s.ports["50051"],
	}
	for _, name := range []string{"GORACE", "GOFLAGS", "GOCACHE", "GOMODCACHE", "GOPATH", "TMPDIR"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// here turns what a page reports into what holds for the test: free ports, our databases, our
// folder.
func (s *session) here(text string) string {
	text = databaseURL.ReplaceAllStringFunc(text, s.databaseHere)
	for port, free := range s.ports {
		text = strings.ReplaceAll(text, ":"+port, ":"+free)
	}
	return ownFiles.ReplaceAllString(text, "${1}"+s.root+"${2}")
}

// superusers are names that pages give to who may do everything.
const superusers = " caretaker owner postgres me "

func (s *session) databaseHere(text string) string {
	m := databaseURL.FindStringSubmatch(text)
	name := m[3]
	if s.urls[name] == "" {
		assert.NoError(s.t, s.cluster.CreateDatabase(context.Background(), name))
		s.urls[name] = s.cluster.URL(name)
	}
	u := assert.Must(url.Parse(s.urls[name]))(s.t)
	if m[1] != "" && !strings.Contains(superusers, " "+m[1]+" ") {
		u.User = url.UserPassword(m[1], cmp.Or(m[2], m[1]))
	}
	if more := strings.TrimPrefix(m[4], "?"); more != "" {
		u.RawQuery += "&" + strings.TrimPrefix(more, "sslmode=verify-full&")
	}
	return u.String()
}

// there turns what was printed back into what a page would show.
func (s *session) there(text string) string {
	text = strings.ReplaceAll(text, s.root, "")
	if u, err := user.Current(); err == nil {
		text = regexp.MustCompile(`\b`+regexp.QuoteMeta(u.Username)+`\b`).ReplaceAllString(text, "me")
	}
	return text
}

// run runs a script in the shell and returns what it printed and its exit code.
func (s *session) run(script string) (output string, code int) {
	s.steps++
	file := fmt.Sprintf("%s/step%d", s.root, s.steps)
	assert.NoError(s.t, os.WriteFile(file, []byte(script), 0o600))
	fmt.Fprintf(s.in, ". %[1]s </dev/null >%[1]s.out 2>&1; echo $?\n", file)
	done := make(chan struct{})
	var answer string
	var err error
	go func() {
		defer close(done)
		answer, err = s.out.ReadString('\n')
	}()
	select {
	case <-done:
	case <-time.After(devdb.WaitTimeout):
		s.t.Fatalf("no end after %s: %s", devdb.WaitTimeout, script)
	}
	printed, readErr := os.ReadFile(file + ".out")
	if readErr != nil {
		s.t.Fatal(readErr)
	}
	output = s.there(string(printed))
	if err != nil {
		return output, 1 // set -e ended the shell
	}
	assert.Must(fmt.Sscan(answer, &code))(s.t)
	return output, code
}

// start starts a command that goes on, in the place of the last one, and waits until it is ready.
func (s *session) start(command string) (output string, code int) {
	s.stopServing()
	command, _, _ = strings.Cut(strings.TrimSpace(command), " #")
	if dev := s.root + "/var/lib/caretaker/dev"; strings.HasPrefix(command, "make run") {
		command = strings.Replace(command, "make run", "caretaker dev --tour --data-dir "+dev, 1)
		assert.NoError(s.t, os.RemoveAll(dev))
	}
	log := filepath.Join(s.root, "serving.log")
	_ = os.Remove(log)
	command = s.ownAddresses(command) + " " + command
	pid, code := s.run(command + " >" + log + " 2>&1 & echo $!")
	if code != 0 {
		return pid, code
	}
	s.serving = &server{log: log}
	if _, err := fmt.Sscan(pid, &s.serving.pid); err != nil {
		s.t.Fatalf("%s: %q", command, pid)
	}
	said := func() string {
		content, _ := os.ReadFile(log)
		return string(content)
	}
	ended := false
	devdb.Eventually(s.t, "the server is ready: "+command, func() bool {
		ended = syscall.Kill(s.serving.pid, 0) != nil
		return ended || strings.Contains(said(), `"msg":"serving"`) ||
			strings.Contains(said(), "Try, in another terminal:")
	})
	if ended {
		return s.there(said()), 1
	}
	return s.there(said()), 0
}

// ownAddresses are variables that keep a server off ports in use, and its schedules from running
// while the page is tried. A configuration file that reports where to listen is changed itself.
func (s *session) ownAddresses(command string) string {
	const cleanup = "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP"
	only := cleanup + "_ROTATION=all " + cleanup + "_SCHEDULE='0 0 1 1 *'"
	variables := only
	if use, _ := s.run("echo $CARETAKER_USE"); strings.TrimSpace(use) == "loose_foreign_keys" {
		return s.listening(only)
	}
	for _, worker := range []string{
		"INACTIVE_TOKEN_DELETION", "GHOST_USER_MIGRATION", "ADJOURNED_GROUP_DELETION",
		"PLACEHOLDER_USER_CLEANUP",
	} {
		variables += " CARETAKER_WORKERS_" + worker + "_SCHEDULE='0 0 1 1 *'"
	}
	_, file, given := strings.Cut(command, "--config ")
	if given {
		file = strings.Fields(file)[0]
		if !filepath.IsAbs(file) {
			file = filepath.Join(s.root, "home", "me", file)
		}
		content := assert.Must(os.ReadFile(file))(s.t)
		assert.NoError(s.t, os.WriteFile(file, []byte(s.here(string(content))), 0o600))
		if strings.Contains(string(content), "\nuse: loose_foreign_keys\n") {
			variables = only
		}
		if listens.Match(content) {
			return variables
		}
	}
	return s.listening(variables)
}

// listening adds the addresses of the server to its variables.
func (s *session) listening(variables string) string {
	return variables + " CARETAKER_LISTEN=127.0.0.1:" + s.ports["50051"] +
		" CARETAKER_METRICS_LISTEN=127.0.0.1:" + s.ports["9464"]
}

func (s *session) stopServing() {
	if s.serving == nil {
		return
	}
	_ = syscall.Kill(s.serving.pid, syscall.SIGTERM)
	devdb.Eventually(s.t, "the server stops", func() bool {
		return syscall.Kill(s.serving.pid, 0) != nil
	})
	s.serving = nil
}
