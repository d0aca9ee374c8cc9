package cli

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/web"
)

func TestDev_RepeatsItsAddressesEveryFewMinutes(t *testing.T) {
	t.Parallel()
	listener := assert.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		i := &instance{
			logger: slog.New(slog.NewTextHandler(&log, nil)), site: &web.Site{},
			listening: &listeners{api: listener, web: listener},
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*remindInterval+time.Second)
		defer stop()
		i.remind(ctx, remindInterval)
		address := listener.Addr().String()
		line := `msg="demo ready" page=http://` + address + "/ address=" + address + "\n"
		assert.Equal(t, strings.Count(log.String(), line), 2, log.String())
	})
}
