package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/caretaker-go/caretaker/config"
)

// listeners are those of a server. dev opens them first, as its start takes long and a port that is
// in use should show at once.
type listeners struct {
	api net.Listener
	// metrics and web are nil where they are switched off.
	metrics, web net.Listener
}

// listen opens the listeners that the configuration asks for. Its error names the key.
func listen(ctx context.Context, c *config.Config) (l *listeners, err error) {
	l = &listeners{}
	for _, want := range []struct {
		key, address string
		to           *net.Listener
	}{
		{"listen", c.Listen, &l.api},
		{"metrics_listen", c.MetricsListen, &l.metrics},
		{"web_listen", c.WebListen, &l.web},
	} {
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

// notListening is the error of an address that cannot be listened on, with what to do.
func notListening(key, address string, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s (%s): %w", key, config.Variable(key), err)
	}
	alternative := "start dev with --listen"
	if key != "listen" {
		alternative = "leave it empty to switch it off"
	}
	return fmt.Errorf("%s: %s is in use by another process, perhaps another caretaker: set %s, "+
		"or %[1]s in the configuration file, to a free address, such as 127.0.0.1:0 for any free port, or %[4]s",
		key, address, config.Variable(key), alternative)
}

// close closes the listeners, also those that a server has closed already.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.api, l.metrics, l.web} {
		if one != nil {
			_ = one.Close()
		}
	}
}

// firstWeb and lastWeb are the ports that dev tries for the status page.
const firstWeb, lastWeb = 8080, 8099

// avoidPortsInUse moves the metrics and the status page of dev to free ports, so that it starts
// beside another dev or a server. dev always has a status page.
func avoidPortsInUse(ctx context.Context, c *config.Config) {
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
