package cli

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/caretaker-go/caretaker/config"
)

// ports opens and closes the listeners of a server. A running server may use its own ports.
func (d *doctor) ports(ctx context.Context, found *findings) error {
	for _, one := range [][2]string{
		{"listen", d.config.Listen}, {"metrics_listen", d.config.MetricsListen}, {"web_listen", d.config.WebListen},
	} {
		key, address := one[0], one[1]
		if address == "" {
			continue
		}
		switch err := probe(ctx, address); {
		case err == nil || errors.Is(err, syscall.EADDRINUSE) && d.serving(ctx):
		case errors.Is(err, syscall.EADDRINUSE):
			found.warning(key+": another program uses "+address,
				"stop that program, or set "+key+" ("+config.Variable(key)+") to a free address")
		default:
			found.failed(strings.TrimSpace(err.Error()), "correct "+key+" ("+config.Variable(key)+")")
		}
	}
	return nil
}
