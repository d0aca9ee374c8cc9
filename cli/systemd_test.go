package cli_test

import (
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// manager is the socket of a service manager, and the states that it has received.
type manager struct {
	socket *net.UnixConn
	path   string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket := assert.Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	t.Cleanup(func() { _ = socket.Close() })
	return &manager{socket, path}
}

// next returns the next state that is not in ignored.
func (m *manager) next(t *testing.T, ignored ...string) string {
	t.Helper()
	assert.NoError(t, m.socket.SetReadDeadline(time.Now().Add(devdb.WaitTimeout)))
	for message := make([]byte, 1024); ; {
		n := assert.Must(m.socket.Read(message))(t)
		if state := string(message[:n]); !slices.Contains(ignored, state) {
			return state
		}
	}
}

func TestFault_Signals_SystemdHearsOfReadyReloadWatchdogAndStop(t *testing.T) {
	sh, _ := newPrepared(t)
	sh.defined(oneKey)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	systemd := newManager(t)
	server, log := sh.process("serve", "NOTIFY_SOCKET="+systemd.path, "WATCHDOG_USEC=200000")
	assert.Equal(t, systemd.next(t), "READY=1")
	log.field(t, "serving", "")
	assert.Equal(t, systemd.next(t), "WATCHDOG=1")
	signal(t, server, syscall.SIGHUP)
	reloading := systemd.next(t, "WATCHDOG=1")
	assert.That(t, regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d+$`).MatchString(reloading),
		"got %q", reloading)
	assert.Equal(t, systemd.next(t, "WATCHDOG=1"), "READY=1")
	log.field(t, "definitions reloaded", "")
	signal(t, server, syscall.SIGTERM)
	assert.Equal(t, systemd.next(t, "WATCHDOG=1"), "STOPPING=1")
	assert.NoError(t, server.Wait())
	assert.Lacks(t, log.String(), "systemd")
}

func TestServe_WithoutSocketOfSystemdServesAndLogsAWarning(t *testing.T) {
	sh, _ := newPrepared(t)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	server, log := sh.process("serve", "NOTIFY_SOCKET=/nonexistent", "WATCHDOG_USEC=soon")
	log.field(t, "systemd not notified", "error")
	log.field(t, "systemd watchdog disabled", "error")
	signal(t, server, syscall.SIGTERM)
	assert.NoError(t, server.Wait())
}

func TestServe_DoesNotPingTheWatchdogIfTheLoopOfMainHasStopped(t *testing.T) {
	t.Parallel()
	assert.That(t, !cli.Stalled(20*time.Second), "stalled after one slow check")
	assert.That(t, cli.Stalled(2*time.Minute), "not stalled")
}
