package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/service"
)

// Config has the settings of a Site. Service and Call are required.
type Config struct {
	Service *service.Service
	Logger  *slog.Logger
	// Version of the program, shown on the page.
	Version string
	// Access has the clients' roles: each request requires a viewer. nil gives all clients access.
	Access *access.Keys
	// TLS, if set, enables TLS.
	TLS *tls.Config
	// Call calls a method of the API with the client's role. fields are the texts of fields of the request.
	Call func(ctx context.Context, from access.Caller, request proto.Message, fields map[string][]string) (proto.Message, error)
	// Actions allows changes to clients with the role that the API requires.
	Actions bool
	// TraceURL is the address of a trace and contains {trace_id}. With "", trace IDs have no link.
	TraceURL string
}

// Limits of a connection.
const (
	headerTime = 5 * time.Second
	answerTime = 30 * time.Second
	idleTime   = 2 * time.Minute
	maxHeader  = 16 << 10
)

// sampleInterval is how often backlogs are saved for the charts.
const sampleInterval = time.Minute

// Site serves the page on one listener.
type Site struct {
	config Config
	pages  *pages
	server *http.Server
	// sampling ends with the server.
	sampling context.Context //nolint:containedctx // ends with the server, not with a call
	stop     context.CancelFunc
	// samples waits for the sampling to end.
	samples sync.WaitGroup
}

// New prepares the page. An error is a bug in the templates.
func New(config Config) (*Site, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	made, err := newPages(config)
	if err != nil {
		return nil, err
	}
	s := &Site{config: config, pages: made}
	s.sampling, s.stop = context.WithCancel(context.Background())
	made.stopping = s.sampling
	s.server = &http.Server{
		// A server changes its TLS configuration, and other servers use this one.
		TLSConfig: config.TLS.Clone(), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime,
		WriteTimeout: answerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(config.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve answers until Stop. It closes the listener.
func (s *Site) Serve(listener net.Listener) error {
	s.server.Handler = s.handler(listener.Addr())
	s.samples.Go(s.sample)
	defer s.pages.recent.background.Wait()
	defer s.samples.Wait()
	defer s.stop()
	var err error
	if s.config.TLS != nil {
		err = s.server.ServeTLS(listener, "", "")
	} else {
		err = s.server.Serve(listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the status page on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Stop waits for open requests until ctx ends. Then it aborts them.
func (s *Site) Stop(ctx context.Context) {
	s.stop()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	s.samples.Wait()
}

// sample saves the backlogs at once, and then every minute.
func (s *Site) sample() {
	failed := false
	for {
		err := s.config.Service.SampleBacklogs(s.sampling)
		readWithin(s.sampling, s.pages.recent, looseForeignKeys, times{lintEvery, lintTimeout, true},
			s.config.Service.CheckLooseForeignKeys) // which the bar of all pages counts
		if err != nil && !failed && s.sampling.Err() == nil {
			s.config.Logger.WarnContext(s.sampling, "backlog samples not saved, retrying", "error", err.Error())
		}
		failed = err != nil
		select {
		case <-s.sampling.Done():
			return
		case <-time.After(sampleInterval):
		}
	}
}
