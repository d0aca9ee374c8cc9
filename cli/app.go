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
	*terminal
	configFile string
	client     connection
	// began is set when a command begins: later errors are not about usage.
	began bool
}

func newApp(streams Streams) *app { return &app{terminal: &terminal{std: streams}} }

// settings are the whole configuration: of the process, and of the service with its workers.
type settings struct {
	*config.Config
	service service.Config
}

// settings reads the file named by --config, and the environment.
func (a *app) settings() (*settings, error) {
	s := &settings{}
	var err error
	s.Config, err = a.std.Env.Load(a.configFile, &s.service)
	return s, err
}

// partialSettings is settings for commands that bring their own databases, or need none.
func (a *app) partialSettings() (*settings, error) {
	s := &settings{}
	var err error
	s.Config, err = a.std.Env.LoadPartial(a.configFile, &s.service)
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
func (out *terminal) json(v any) error {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return err
	}
	return out.write(printableJSON(text.String()))
}

// report prints what was done, with --output json as a document; err is what failed.
func (out *terminal) report(err error, document any, text func()) error {
	if out.asJSON {
		return errors.Join(err, out.json(document))
	}
	text()
	return err
}

func (out *terminal) write(text string) error {
	_, err := io.WriteString(out.std.Out, text)
	return err
}

// println writes a line for people to the standard output.
func (out *terminal) println(format string, args ...any) {
	_, _ = io.WriteString(out.std.Out, message(format, args))
}

// sayPainted is say with a state in its colour.
func (out *terminal) printColored(state, format string, args ...any) {
	line := message(format, args)
	_, _ = io.WriteString(out.std.Out, strings.Replace(line, state, out.colorize(state), 1))
}

// text is say, and nothing with --output json.
func (out *terminal) text(format string, args ...any) {
	if !out.asJSON {
		out.println(format, args...)
	}
}

// note writes a line to the standard error.
func (out *terminal) note(format string, args ...any) {
	_, _ = io.WriteString(out.std.Err, message(format, args))
}

// fields writes an indented line for each field of something that has a value.
func (out *terminal) fields(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out.println("  %-7s %s", pairs[i], out.localized(pairs[i+1]))
		}
	}
}
