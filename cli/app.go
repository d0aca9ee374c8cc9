package cli

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// app is what commands share.
type app struct {
	Streams
	configFile string
	// asJSON is set by --output json.
	asJSON bool
	// wide is set by --output wide: tables are whole, however narrow the terminal is.
	wide bool
	// shortTime times lose year and seconds, and the day if it is today.
	shortTime bool
	client    connection
	// began is set when a command begins: later errors are not about usage.
	began bool
	// asked is the request of a command that makes one call.
	asked any
}

// settings are the whole configuration: of the process, and of the service with its workers.
type settings struct {
	*config.Config
	service service.Config
}

// settings reads the file named by --config, and the environment.
func (a *app) settings() (*settings, error) {
	s := &settings{}
	var err error
	s.Config, err = a.Env.Load(a.configFile, &s.service)
	return s, err
}

// partialSettings is settings for commands that bring their own databases, or need none.
func (a *app) partialSettings() (*settings, error) {
	s := &settings{}
	var err error
	s.Config, err = a.Env.LoadPartial(a.configFile, &s.service)
	return s, err
}

// readFiles reads the files that a server needs, so that mistakes in all of them are reported
// together with those of the configuration.
func (s *settings) readFiles() error {
	_, tokenErr := s.access(nil)
	var tlsErr, definitionsErr error
	if s.TLS.CertFile != "" && s.TLS.KeyFile != "" {
		_, tlsErr = s.tls().TLS()
	}
	if keys := service.Settings[loosefk.Config](&s.service); keys.DefinitionsFile != "" {
		keys.Definitions, definitionsErr = loosefk.LoadDefinitions(keys.DefinitionsFile)
	}
	return errors.Join(tokenErr, tlsErr, definitionsErr)
}

// tls are the settings of the server that concern TLS.
func (s *settings) tls() server.Config {
	return server.Config{
		CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile, ClientCAFile: s.TLS.ClientCAFile,
	}
}

// usage makes an error one of usage: exit code 2.
func usage(err error) error { return &exitError{exitUsage, err} }

// json writes a value as one indented JSON document.
func (a *app) json(v any) error {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return err
	}
	return a.write(printableJSON(text.String()))
}

// report prints what was done, with --output json as a document; err is what failed.
func (a *app) report(err error, document any, text func()) error {
	if a.asJSON {
		return errors.Join(err, a.json(document))
	}
	text()
	return err
}

func (a *app) write(text string) error {
	_, err := io.WriteString(a.Out, text)
	return err
}

// println writes a line for people to the standard output.
func (a *app) println(format string, args ...any) {
	_, _ = io.WriteString(a.Out, message(format, args))
}

// sayPainted is say with a state in its colour.
func (a *app) sayPainted(state, format string, args ...any) {
	line := message(format, args)
	_, _ = io.WriteString(a.Out, strings.Replace(line, state, a.colorize(state), 1))
}

// text is say, and nothing with --output json.
func (a *app) text(format string, args ...any) {
	if !a.asJSON {
		a.println(format, args...)
	}
}

// note writes a line to the standard error.
func (a *app) note(format string, args ...any) {
	_, _ = io.WriteString(a.Err, message(format, args))
}

// fields writes an indented line for each field of something that has a value.
func (a *app) fields(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			a.println("  %-7s %s", pairs[i], a.localized(pairs[i+1]))
		}
	}
}
