package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"
)

// networkDelay is what a round trip takes longer when the database is far.
const networkDelay = time.Millisecond

// far puts a network between the database and what is opened on it from now on.
func (d *database) far(ctx context.Context) error {
	address, err := url.Parse(d.url)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n := &network{listener: listener, server: address.Host}
	n.wait.Go(n.accept)
	d.closers = append(d.closers, n.close)
	address.Host = listener.Addr().String()
	d.url = address.String()
	return nil
}

// network passes connections on to a server. Requests of clients arrive late, answers of the server
// at once.
type network struct {
	listener net.Listener
	server   string
	wait     sync.WaitGroup
	mu       sync.Mutex
	open     []net.Conn
	closed   bool
}

func (n *network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", n.server) //nolint:noctx // of this machine, and closed with the listener
		if err != nil || !n.keep(client, server) {
			_ = client.Close()
			continue
		}
		n.wait.Go(func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		})
		n.wait.Go(func() {
			late(server, client)
			_ = server.Close()
		})
	}
}

// keep notes connections that are to be closed at the end. false means that this is the end.
func (n *network) keep(connections ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.open = append(n.open, connections...)
	}
	return !n.closed
}

func (n *network) close() error {
	err := n.listener.Close()
	n.mu.Lock()
	n.closed = true
	for _, c := range n.open {
		if closing := c.Close(); !errors.Is(closing, net.ErrClosed) {
			err = errors.Join(err, closing)
		}
	}
	n.mu.Unlock()
	n.wait.Wait()
	return err
}

// late copies its input, each piece so long after it came. Many may be under way at once, so a long
// message does not take longer than a short one.
func late(to io.Writer, from io.Reader) {
	type piece struct {
		bytes []byte
		at    time.Time
	}
	underway := make(chan piece, 64)
	var wait sync.WaitGroup
	wait.Go(func() {
		broken := false
		for p := range underway {
			time.Sleep(time.Until(p.at))
			if !broken {
				_, err := to.Write(p.bytes)
				broken = err != nil
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			underway <- piece{slices.Clone(buffer[:n]), time.Now().Add(networkDelay)}
		}
		if err != nil {
			break
		}
	}
	close(underway)
	wait.Wait()
}

// roundTrip is how long the shortest statement takes on a connection that is opened now.
func (d *database) roundTrip(ctx context.Context) (took time.Duration, err error) {
	near, err := d.lab.connectTo(ctx, d.name, d.url)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, near.conn.Close(ctx)) }()
	all := make([]time.Duration, 50)
	for i := range all {
		start := time.Now()
		if err := near.exec(ctx, `SELECT`); err != nil {
			return 0, fmt.Errorf("measure a round trip: %w", err)
		}
		all[i] = time.Since(start)
	}
	return median(all), nil
}
