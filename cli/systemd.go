package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// stallLimit is the maximum time between two checks of main. One check takes at most 10 s. A server
// that exceeds the limit no longer pings systemd's watchdog, so that systemd restarts it.
const stallLimit = time.Minute

// supervise reloads on SIGHUP and pings systemd's watchdog, until ctx ends or a listener breaks.
func (i *instance) supervise(ctx context.Context) error {
	var pings <-chan time.Time
	within, err := daemon.SdWatchdogEnabled(false)
	i.logWarning("systemd watchdog disabled", err)
	if within > 0 {
		ticker := time.NewTicker(within / 2)
		defer ticker.Stop()
		pings = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-i.failed:
			return err
		case <-i.hangups:
			i.notify(reloading())
			i.reload(ctx)
			i.notify(daemon.SdNotifyReady)
		case <-pings:
			if !i.stalled() {
				i.notify(daemon.SdNotifyWatchdog)
			}
		}
	}
}

// reload reads the definitions and the tokens again.
func (i *instance) reload(ctx context.Context) {
	i.access.Reload()
	n, err := i.service.ReloadDefinitions()
	if err != nil {
		i.logger.ErrorContext(ctx, "definitions not reloaded", "error", err.Error())
		return
	}
	i.logger.InfoContext(ctx, "definitions reloaded", "definitions", n)
}

// stalled reports whether the loop that checks main has stopped.
func (i *instance) stalled() bool {
	checked := i.mainChecked.Load()
	return checked != nil && time.Since(*checked) > stallLimit
}

// notify sends a state to systemd. It does nothing if systemd did not start the server.
func (i *instance) notify(state string) {
	_, err := daemon.SdNotify(false, state)
	i.logWarning("systemd not notified", err)
}

// reloading returns the state RELOADING with the monotonic time, which systemd requires.
func reloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000)
}
