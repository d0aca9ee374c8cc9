package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/server"
)

// ports opens and closes the listeners of a server. A running server with this configuration may
// use its own ports.
func (d *doctor) ports(ctx context.Context, found *findings) error {
	own, other := d.serving(ctx)
	for _, one := range [][2]string{
		{"listen", d.config.Listen}, {"metrics_listen", d.config.MetricsListen}, {"web_listen", d.config.WebListen},
	} {
		key, address := one[0], one[1]
		if address == "" {
			continue
		}
		free := "set " + key + " (" + config.Variable(key) + ") to a free address"
		switch err := probe(ctx, address); {
		case err == nil || errors.Is(err, syscall.EADDRINUSE) && own:
		case errors.Is(err, syscall.EADDRINUSE) && other && key == "listen":
			found.warning("listen: a caretaker with other databases or ports uses "+address,
				"stop that server, restart it if its configuration has changed, or "+free)
		case errors.Is(err, syscall.EADDRINUSE):
			found.warning(key+": another program uses "+address, "stop that program, or "+free)
		default:
			found.failed(strings.TrimSpace(err.Error()), "correct "+key+" ("+config.Variable(key)+")")
		}
	}
	return nil
}

// askTimeout bounds the question who listens.
const askTimeout = 3 * time.Second

// serving reports which server answers at listen: own, with these databases and ports, or another
// caretaker.
func (d *doctor) serving(ctx context.Context) (own, other bool) {
	var client connection
	client.useServer("the configuration", d.config.Config)
	transport, err := client.credentials()
	if err != nil {
		return false, false
	}
	conn, err := grpc.NewClient(client.address, grpc.WithTransportCredentials(transport))
	if err != nil {
		return false, false
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var header metadata.MD
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header))
	// A server that requires client certificates has shown its own certificate by then.
	own = err != nil && strings.Contains(err.Error(), "certificate required") ||
		slices.Contains(header.Get(server.IdentityHeader), identity(d.databases,
			d.config.Listen, d.config.MetricsListen, d.config.WebListen))
	return own, !own && len(header.Get(server.NameHeader)) > 0
}

// identity identifies a server by its databases and its ports, without showing them to clients.
func identity(databases []*repo.Database, addresses ...string) string {
	var all []string
	for _, d := range databases {
		all = append(all, d.Name+" "+d.Target())
	}
	for _, address := range addresses {
		_, port, _ := net.SplitHostPort(address)
		all = append(all, port)
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(all, "\n"))))
}
