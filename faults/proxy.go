package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// proxy is the network between one replica and one database. Its faults can be changed at any time.
// It also leads elsewhere after a failover.
type proxy struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	server string
	open   map[net.Conn]bool
	closed bool

	// delay holds up each piece of what is sent, in nanoseconds.
	delay atomic.Int64
	// away refuses all connections.
	away atomic.Bool
	// stalled keeps what is sent in either direction, on connections that stay open.
	stalled atomic.Bool
	// commits is how many of the next COMMITs are passed on just before the connection is cut.
	// statements is the same for statements that commit by themselves.
	commits, statements atomic.Int64
}

// newProxy leads to the server of a URL.
func newProxy(ctx context.Context, target string) (*proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, open: map[net.Conn]bool{}}
	if err := p.leadTo(target); err != nil {
		return nil, err
	}
	p.wait.Go(p.accept)
	return p, nil
}

// url is a URL with the proxy's address instead of the server's.
func (p *proxy) url(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	u.Host = p.listener.Addr().String()
	return u.String(), nil
}

// leadTo is for connections that are opened from now on.
func (p *proxy) leadTo(target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = u.Host
	return nil
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.away.Load() {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		address := p.server
		p.mu.Unlock()
		server, err := net.DialTimeout("tcp", address, time.Second) //nolint:noctx // of this machine
		if err != nil || !p.keep(client, server) {
			_ = client.Close()
			continue
		}
		p.wait.Go(func() { p.pass(client, server, false) })
		p.wait.Go(func() { p.pass(server, client, true) })
	}
}

// keep notes connections. false means that this is the end.
func (p *proxy) keep(connections ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range connections {
		if p.closed {
			_ = c.Close()
		} else {
			p.open[c] = true
		}
	}
	return !p.closed
}

// pass copies one direction until it ends.
func (p *proxy) pass(to, from net.Conn, sent bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		delete(p.open, from)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !p.waitWhileSlow(from) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if sent && (isCommit(buffer[:n]) && take(&p.commits) || isStatement(buffer[:n]) && take(&p.statements)) {
			return
		}
		if err != nil {
			return
		}
	}
}

// waitWhileSlow waits while the network is slow or stalled. false means that the connection was cut
// meanwhile.
func (p *proxy) waitWhileSlow(c net.Conn) bool {
	time.Sleep(time.Duration(p.delay.Load()))
	for p.stalled.Load() {
		time.Sleep(5 * time.Millisecond)
		p.mu.Lock()
		there := p.open[c]
		p.mu.Unlock()
		if !there {
			return false
		}
	}
	return true
}

// isCommit knows the simple query with which pgx ends a transaction. Neither it nor isStatement sees a
// message that is split over two reads.
func isCommit(message []byte) bool { return bytes.Contains(message, []byte("commit\x00")) }

// isStatement knows the Sync after a statement, which commits what is no transaction of its own.
func isStatement(message []byte) bool { return bytes.HasSuffix(message, []byte("S\x00\x00\x00\x04")) }

// take takes one of the remainder, if anything is.
func take(of *atomic.Int64) bool {
	for {
		left := of.Load()
		if left == 0 {
			return false
		}
		if of.CompareAndSwap(left, left-1) {
			return true
		}
	}
}

// cut breaks all open connections with a reset.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
		delete(p.open, c)
	}
}

// heal makes the network whole. Connections that are open stay.
func (p *proxy) heal() {
	p.delay.Store(0)
	p.away.Store(false)
	p.stalled.Store(false)
	p.commits.Store(0)
	p.statements.Store(0)
}

var _ io.Closer = (*proxy)(nil)

// Close ends all connections.
func (p *proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.heal()
	p.cut()
	p.wait.Wait()
	return err
}
