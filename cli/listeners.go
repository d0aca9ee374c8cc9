package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/caretaker-go/caretaker/config"
)

// listeners are taken before anything else is done where that takes long: a port that is taken should show at once.
type listeners struct {
	api net.Listener
	// metrics and web are nil where they are off.
	metrics, web net.Listener
}

// listen takes the addresses of the configuration. The error names the key.
func listen(ctx context.Context, c *config.Config) (l *listeners, err error) {
	l = &listeners{}
	for _, want := range []struct {
		key, address string
		to           *net.Listener
	}{{"listen", c.Listen, &l.api}, {"metrics_listen", c.MetricsListen, &l.metrics}, {"web_listen", c.WebListen, &l.web}} {
		if want.address == "" {
			continue
		}
		if *want.to, err = new(net.ListenConfig).Listen(ctx, "tcp", want.address); err != nil {
			l.close()
			return nil, notListening(want.key, want.address, err)
		}
	}
	return l, nil
}

// notListening names the key and says what to do.
func notListening(key, address string, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s (%s): %w", key, config.Variable(key), err)
	}
	besides := ", or start dev with --listen"
	if key != "listen" {
		besides = ", or leave it empty to have none"
	}
	return fmt.Errorf("%s: %s is taken by another process, perhaps another caretaker: set %s to an address that is free, such as "+
		"127.0.0.1:0 for any port%s", key, address, config.Variable(key), besides)
}

// close gives back what nobody has served.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.api, l.metrics, l.web} {
		if one != nil {
			_ = one.Close()
		}
	}
}

const (
	// firstWeb and lastWeb are the ports that dev tries for the page.
	firstWeb, lastWeb = 8080, 8099
)

// moveAside gives what is not essential for dev another port when its own is taken: a second dev, or a server that runs
// already, is no reason not to start. The page is on in any case, at the next port that is free.
func moveAside(ctx context.Context, c *config.Config) {
	if c.MetricsListen != "" && !free(ctx, c.MetricsListen) {
		c.MetricsListen = "127.0.0.1:0"
	}
	if c.WebListen != "" {
		return
	}
	for port := firstWeb; port <= lastWeb; port++ {
		if c.WebListen = fmt.Sprintf("127.0.0.1:%d", port); free(ctx, c.WebListen) {
			return
		}
	}
	c.WebListen = "127.0.0.1:0"
}

func free(ctx context.Context, address string) bool {
	probe, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err == nil {
		_ = probe.Close()
	}
	return err == nil
}
