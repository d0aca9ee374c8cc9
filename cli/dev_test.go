package cli_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestDev_NeedsNothingElse(t *testing.T) {
	sh := newShell(t)
	dir := folder(t)
	r := sh.serving("dev", "--data-dir", dir, "--listen", "127.0.0.1:0")
	eventually(t, "dev says how to use it", &r.out, func() bool { return strings.Contains(r.out.String(), " run "+worker) })
	assert.Contains(t, r.out.String(), "grpcurl -plaintext "+r.address+" maintenance.v1.MaintenanceService/GetStatus")
	r.want(0, "status", worker)
	r.want(0, "run "+worker+" --database ci", "succeeded")

	environment := filepath.Join(dir, "env")
	content := assert.Must(os.ReadFile(environment))(t)
	t.Run("its environment is enough for serve and lfk", func(t *testing.T) {
		sh := sh.sub(t)
		for line := range strings.Lines(string(content)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			sh.set(name, value)
		}
		for _, name := range []string{"MAIN", "CI", "SEC"} {
			assert.That(t, sh.get("CARETAKER_DATABASES_"+name+"_URL") != "", "%s is missing in %s", name, content)
		}
		sh.want(0, "migrate", "main: up to date", "sec: up to date")
		sh.want(0, "lfk lint", "0 errors")
	})
	assert.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	r.log.field(t, "definitions reloaded", "")
	r.stop()
	assert.Equal(t, <-r.exit, 0, "exit", &r.log)
	if _, err := os.Stat(environment); !os.IsNotExist(err) {
		t.Errorf("the environment file is left: %v", err)
	}
}

func TestDev_RefusesAddressesAndDirectoriesOfOthers(t *testing.T) {
	sh := newShell(t)
	sh.want(1, "dev --listen 0.0.0.0:0 --data-dir "+folder(t), `listen: "0.0.0.0:0" can be reached from other hosts`)
	sh.want(2, "dev --listen nonsense --data-dir "+folder(t), `--listen: "nonsense" is not an address`)
	sh.want(2, "help nonsense", `unknown command "nonsense"`)
	sh.want(0, "help run", "Exit codes: 0 succeeded")
	dir := folder(t)
	file := filepath.Join(dir, "loose_foreign_keys.yml")
	assert.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	options := " --listen 127.0.0.1:0 --data-dir "
	sh.want(1, "dev"+options+dir, dir+" has files that caretaker has not made, such as loose_foreign_keys.yml",
		"name a new or an empty directory with --data-dir")
	content := assert.Must(os.ReadFile(file))(t)
	assert.Equal(t, string(content), "mine")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("there are %v, %v", files, err)
	}
	sh.want(1, "dev"+options+file, file+" is not a directory")
	// The address is taken before anything is loaded.
	taken := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	dir = folder(t)
	sh.want(1, "dev --listen "+taken.Addr().String()+" --data-dir "+dir, "listen: ", "is in use by another process", "--listen")
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("%d files are there already, %v", len(files), err)
	}
}
