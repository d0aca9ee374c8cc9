package devdb

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestFault_Supervision_ServerAndFolderGoWithAKilledProcess(t *testing.T) {
	for name, signal := range map[string]os.Signal{"SIGKILL": syscall.SIGKILL, "Ctrl-C": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			base := reachable(t)
			if err := os.Chmod(base, 0o777); err != nil { // the server's user has to remove the folder from it
				t.Fatal(err)
			}
			h := holdCluster(t, os.Args[0], base, true, nil)
			h.end(t, signal)
			Eventually(t, "server and folder are gone", func() bool { return missing(h.dir) && !answers(h.url) })
		})
	}
}

func TestFault_Supervision_PersistentDataOutlivesAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	h := holdCluster(t, os.Args[0], dir, false, nil)
	run(t, h.url, "CREATE TABLE kept AS SELECT 'here' AS it")
	h.end(t, syscall.SIGKILL)
	// Started at once, while the server may still be going down.
	c := start(t, Config{Dir: dir})
	if got := column(t, c.URL("postgres"), "SELECT it FROM kept"); got[0] != "here" {
		t.Errorf("kept %q", got)
	}
}

func TestFault_Supervision_ATakenOverServerIsStoppedToo(t *testing.T) {
	c := start(t, Config{Dir: t.TempDir()})
	stop(t, c)
	orphan(t, c)
	h := holdCluster(t, os.Args[0], c.Dir(), false, nil)
	h.end(t, syscall.SIGKILL)
	Eventually(t, "the server is gone", func() bool { return !answers(h.url) })
}

func TestFault_Supervision_CtrlCInTheTerminalReachesUsAlone(t *testing.T) {
	c := start(t, Config{Ephemeral: true})
	group, err := syscall.Getpgid(c.server.pid)
	assert.That(t, err == nil && group != syscall.Getpgrp(), "the server is in our process group (%d): %v", group, err)
}

// As root the server runs as another user all through this package. This runs
// the whole as an ordinary user.
func TestFault_Supervision_WorksAsAnOrdinaryUser(t *testing.T) {
	attr := &syscall.SysProcAttr{}
	dir := reachable(t)
	if os.Geteuid() == 0 {
		nobody := assert.Must(user.Lookup("nobody"))(t)
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		assert.NoError(t, os.Chown(dir, uid, gid))
	}
	t.Setenv("HOME", dir)
	h := holdCluster(t, self(t), filepath.Join(dir, "dev"), false, attr)
	assert.That(t, answers(h.url), "no answer")
	assert.NoError(t, h.stdin.Close())
	if err := h.process.Wait(); err != nil || answers(h.url) {
		t.Errorf("after Stop: %v", err)
	}
}
