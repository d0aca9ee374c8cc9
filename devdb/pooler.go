package devdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is a running PgBouncer in front of a cluster. It pools by transaction, keeps nothing of a session, and knows no
// prepared statements.
type Pooler struct {
	cluster *Cluster
	folder  folder
	port    int
	// hold keeps the program running. ended closes when it has ended. Both are nil until it is
	// started.
	hold  io.Closer
	ended chan struct{}
}

// poolerScript runs a program that must not outlive the process at the other end of standard input. It
// starts the program again when it ends, as a service manager does. PgBouncer 1.18 can crash when its
// connections to the server are terminated (https://github.com/pgbouncer/pgbouncer/issues/822).
const poolerScript = `exec 3<&0
(trap 'kill -TERM $!; wait $!; exit' TERM
while :; do
	"$@" </dev/null &
	wait $!
	sleep 0.1
done) 3<&- &
read -r word <&3
kill -TERM $!
wait $!`

// Pooler starts PgBouncer with so many connections to each database of the cluster. Without
// PgBouncer it fails and reports what to install.
func (c *Cluster) Pooler(ctx context.Context, size int) (*Pooler, error) {
	program, err := findPooler(os.Getenv("PATH"), poolerPlaces())
	if err != nil {
		return nil, err
	}
	p := &Pooler{cluster: c}
	if p.folder, err = tempFolder([]string{os.TempDir(), "/tmp", "/var/tmp"}, c.owner); err != nil {
		return nil, err
	}
	if err = p.configure(ctx, program, size); err == nil {
		err = p.start(ctx, program)
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// poolerPlaces are where package managers, and `make test` without root, put the program, besides PATH.
func poolerPlaces() []string {
	places := []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin"}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "caretaker", "pgbouncer", "usr", "sbin"))
	}
	return places
}

// errNoPooler shows the user how to install PgBouncer.
var errNoPooler = errors.New("pgbouncer not found: run `make test`, which tries to install pgbouncer, or install it manually " +
	"(Debian, Ubuntu: apt install pgbouncer; Red Hat: dnf install pgbouncer; macOS: brew install pgbouncer)")

func findPooler(path string, places []string) (string, error) {
	for _, dir := range append(filepath.SplitList(path), places...) {
		if program := filepath.Join(dir, "pgbouncer"); executable(program) {
			return program, nil
		}
	}
	return "", errNoPooler
}

const poolerSettings = `[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
server_reset_query_always = 0
max_client_conn = 1000
`

func (p *Pooler) configure(ctx context.Context, program string, size int) (err error) {
	if p.port, err = freePort(ctx, 0); err != nil {
		return err
	}
	users := p.folder.file("users")
	settings := fmt.Sprintf(poolerSettings, p.cluster.port, p.port, users, size)
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return fmt.Errorf("cannot read the version of %s: %w", program, err)
	}
	// Later versions can do more than those before 1.21, which people still run.
	if version := regexp.MustCompile(`(?i)pgbouncer 1\.(\d+)`).FindSubmatch(out); version != nil {
		if minor, _ := strconv.Atoi(string(version[1])); minor >= 21 {
			settings += "max_prepared_statements = 0\n"
		}
	}
	for name, text := range map[string]string{users: fmt.Sprintf("%q %q\n", superuser, p.cluster.password), p.folder.file("settings"): settings} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), p.cluster.owner.own(name)); err != nil {
			return err
		}
	}
	return nil
}

// start returns when the pooler answers.
func (p *Pooler) start(ctx context.Context, program string) error {
	log, err := os.Create(p.folder.file("log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", poolerScript, "pooler", program, p.folder.file("settings"))
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.SysProcAttr = log, log, "/", p.cluster.owner.attr()
	cmd.Env = append(environment(), "LD_LIBRARY_PATH="+libraries(program))
	if p.hold, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s as user %s: %w", program, p.cluster.owner.name, err)
	}
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // told by its log
	}()
	for end := time.Now().Add(startTimeout); ; {
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if waitErr := pause(ctx, end); waitErr != nil {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("PgBouncer does not answer: %w, log of PgBouncer: %s", err, text)
		}
	}
}

// libraries are where those of a program are that was unpacked and not installed. empty for the
// others.
func libraries(program string) string {
	root, unpacked := strings.CutSuffix(program, "/usr/sbin/pgbouncer")
	if !unpacked || root == "" {
		return ""
	}
	found, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-*")) // constant pattern
	return strings.Join(found, ":")
}

// URL returns the URL of a database through the pooler, with the required setting
// (docs/guides/managed-postgresql.md).
func (p *Pooler) URL(database string) string {
	return p.PlainURL(database) + "&default_query_exec_mode=exec"
}

// PlainURL returns the URL without that setting.
func (p *Pooler) PlainURL(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, p.cluster.password),
		Host: "127.0.0.1:" + strconv.Itoa(p.port), Path: "/" + database, RawQuery: "sslmode=disable",
	}).String()
}

// Stop stops the pooler and removes its files. Stopping twice does nothing.
func (p *Pooler) Stop() error {
	if p.ended != nil {
		_ = p.hold.Close() // fails only when it has been closed before
		<-p.ended
	}
	err := os.RemoveAll(p.folder.path)
	if closeErr := p.folder.close(); !errors.Is(closeErr, os.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}
