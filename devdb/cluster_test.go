package devdb

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func start(t *testing.T, config Config) *Cluster {
	t.Helper()
	c := assert.Must(Start(t.Context(), config))(t)
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func stop(t *testing.T, c *Cluster) {
	t.Helper()
	assert.NoError(t, c.Stop(t.Context()))
}

// orphan starts the stopped cluster's server without any supervision.
func orphan(t *testing.T, c *Cluster) *exec.Cmd {
	t.Helper()
	found := assert.Must(find(t.Context(), os.Getenv("PATH"), places(), 0))(t)
	cmd := exec.Command(filepath.Join(found.dir, "postgres"), "-D", c.folder.data(), "-c", "port="+strconv.Itoa(c.port), "-c", "unix_socket_directories=")
	cmd.Env, cmd.Dir, cmd.SysProcAttr = environment(), "/", c.owner.attr()
	assert.NoError(t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	Eventually(t, "the orphan answers", func() bool { return answers(c.URL("postgres")) })
	return cmd
}

func TestFault_Cluster_AnEphemeralOneTakesSettingsAndIsRemovedWhenItStops(t *testing.T) {
	t.Parallel()
	c := start(t, Config{Ephemeral: true, Dir: memoryDir(), Settings: map[string]string{"max_connections": "17", "application_name": "it's \"quoted\""}})
	for name, want := range map[string]string{"max_connections": "17", "application_name": "it's \"quoted\"", "fsync": "off", "TimeZone": "UTC", "server_encoding": "UTF8", "listen_addresses": "127.0.0.1"} {
		assert.Equal(t, column(t, c.URL("postgres"), "SELECT reset_val FROM pg_settings WHERE name = '"+name+"'")[0], want, name)
	}
	done := make(chan error)
	go func() { done <- c.exec(context.Background(), "SELECT pg_sleep(600)") }()
	Eventually(t, "a statement runs", func() bool {
		return column(t, c.URL("postgres"), "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND state = 'active' AND pid <> pg_backend_pid()")[0] == "1"
	})
	stop(t, c)
	if err := <-done; err == nil {
		t.Error("the statement went on")
	}
	stop(t, c) // the same again
	if !missing(c.Dir()) {
		t.Errorf("%s is still there", c.Dir())
	}
}

// leaveInterruptedCreation writes what a process leaves that is killed while it creates a cluster.
func leaveInterruptedCreation(t *testing.T, dir string) {
	t.Helper()
	assert.NoError(t, os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700))
	for _, name := range []string{"lock", "password"} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("1"), 0o644))
	}
}

// Each part finds the folder with a stopped server, and leaves it so.
func TestFault_Cluster_APersistentOne(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	dir := t.TempDir()
	leaveInterruptedCreation(t, dir)
	c := start(t, Config{Dir: dir, Log: &said})
	t.Run("keeps data and port from one start to the next", func(t *testing.T) {
		for range 2 { // the second time it is there
			assert.NoError(t, c.CreateDatabase(t.Context(), `odd "name`))
		}
		url := c.URL(`odd "name`)
		run(t, url, "CREATE TABLE kept AS SELECT 'here' AS it")
		stop(t, c)
		assert.That(t, !answers(url), "the server answers after Stop")
		again := start(t, Config{Dir: dir})
		assert.Equal(t, again.URL(`odd "name`), url, "URL")
		if got := column(t, url, "SELECT it FROM kept"); got[0] != "here" {
			t.Errorf("kept %q", got)
		}
		if !strings.Contains(said.String(), again.Dir()) || !strings.Contains(said.String(), "listens on 127.0.0.1:"+strconv.Itoa(c.port)) {
			t.Errorf("it said %q", said.String())
		}
	})
	t.Run("is durable, and in use by one process", func(t *testing.T) {
		c := start(t, Config{Dir: dir})
		if got := column(t, c.URL("postgres"), "SELECT string_agg(setting, ' ') FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')"); got[0] != "on on on" {
			t.Errorf("fsync and the like: %q", got)
		}
		_, err := Start(t.Context(), Config{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("error %v", err)
		}
		assert.That(t, answers(c.URL("postgres")), "the first cluster is gone")
	})
	t.Run("recovers from a killed server", func(t *testing.T) {
		c := start(t, Config{Dir: dir})
		run(t, c.URL("postgres"), "CREATE TABLE kept AS SELECT 'here' AS it")
		assert.NoError(t, syscall.Kill(c.server.pid, syscall.SIGKILL))
		stop(t, c)
		// PostgreSQL refuses to start while a process of the killed server still ends.
		var again *Cluster
		Eventually(t, "the server starts again", func() bool {
			var err error
			again, err = Start(t.Context(), Config{Dir: dir})
			return err == nil
		})
		if got := column(t, again.URL("postgres"), "SELECT it FROM kept"); got[0] != "here" {
			t.Errorf("kept %q", got)
		}
		stop(t, again)
	})
}

func TestFault_Cluster_APersistentOneCopesWithWhatItFinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := start(t, Config{Dir: dir})
	stop(t, c)
	t.Run("takes over a running server", func(t *testing.T) {
		server := orphan(t, c)
		var said strings.Builder
		again := start(t, Config{Dir: dir, Log: &said})
		if again.server.pid != server.Process.Pid || !answers(again.URL("postgres")) || !strings.Contains(said.String(), "Taking over") {
			t.Errorf("server %d, the orphan is %d; it said %q", again.server.pid, server.Process.Pid, said.String())
		}
		stop(t, again)
		assert.That(t, !answers(again.URL("postgres")), "it still runs")
	})
	t.Run("ignores the pid file of a dead server", func(t *testing.T) {
		ended := exec.Command("true")
		assert.NoError(t, ended.Run())
		stale := strconv.Itoa(ended.Process.Pid) + "\n" + c.folder.data() + "\n0\n" + strconv.Itoa(c.port) + "\n\n127.0.0.1\n"
		path := filepath.Join(c.folder.data(), "postmaster.pid")
		assert.NoError(t, os.WriteFile(path, []byte(stale), 0o600))
		assert.NoError(t, c.owner.own(path))
		if again := start(t, Config{Dir: dir}); !answers(again.URL("postgres")) {
			t.Error("no answer")
		}
	})
	t.Run("shows the server's log when a setting is wrong", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Dir: dir, Settings: map[string]string{"no_such_setting": "1"}})
		assert.That(t, err != nil && strings.Contains(err.Error(), "no_such_setting"), "error %v", err)
	})
	t.Run("notices that its port is taken between look and start", func(t *testing.T) {
		found := assert.Must(find(t.Context(), os.Getenv("PATH"), places(), 0))(t)
		late := &Cluster{config: c.config, folder: c.folder, owner: c.owner, password: c.password, port: owned.Cluster(t).port}
		if err := late.try(t.Context(), found); !errors.Is(err, errPortTaken) {
			t.Errorf("error %v", err)
		}
		assert.That(t, !missing(c.folder.data()), "the data is gone")
	})
	t.Run("gives up a port that is taken", func(t *testing.T) {
		other := owned.Cluster(t)
		assert.NoError(t, os.WriteFile(c.folder.file("port"), []byte(strconv.Itoa(other.port)), 0o600))
		again := start(t, Config{Dir: dir})
		assert.That(t, again.port != other.port && answers(again.URL("postgres")), "port %d", again.port)
	})
}

func TestCluster_AsksForAPassword(t *testing.T) {
	t.Parallel()
	c := owned.Cluster(t)
	assert.That(t, !answers(strings.Replace(c.URL("postgres"), c.password, "wrong", 1)), "a wrong password opens the door")
}

func TestCluster_StartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	base := t.TempDir()
	if c, err := Start(ctx, Config{Dir: base, Ephemeral: true}); err == nil {
		stop(t, c)
		t.Error("it started")
	}
	if left, _ := filepath.Glob(filepath.Join(base, "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestFault_Sweep_RemovesLeftoversAndStopsTheirServers(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	c := start(t, Config{Dir: filepath.Join(base, "caretaker-postgres-left")})
	stop(t, c)
	orphan(t, c)
	used := assert.Must(openFolder(filepath.Join(base, "caretaker-postgres-used"), c.owner))(t)
	defer func() { _ = used.close() }()
	young := filepath.Join(base, "caretaker-postgres-young")
	assert.NoError(t, os.Mkdir(young, 0o700))
	sweep(t.Context(), []string{base}, time.Now().Add(30*time.Second))
	assert.That(t, !missing(young) && !missing(c.Dir()), "folders of less than a minute are gone")
	sweep(t.Context(), []string{base}, time.Now().Add(2*time.Minute))
	assert.That(t, missing(young) && missing(c.Dir()) && !answers(c.URL("postgres")), "leftovers are still there")
	assert.That(t, !missing(used.path), "a folder in use was removed")
}
