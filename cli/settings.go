package cli

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// settings are the whole configuration: of the process, and of the service with its workers.
type settings struct {
	*config.Config
	service service.Config
}

// settings reads the file named by --config, and the environment.
func (a *app) settings() (s *settings, err error) {
	s = &settings{}
	s.Config, err = a.std.Env.Load(a.configFile, &s.service)
	return s, err
}

// partialSettings is settings for commands that bring their own databases, or need none.
func (a *app) partialSettings() (s *settings, err error) {
	s = &settings{}
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
	if keys := service.Settings[lfk.Config](&s.service); keys.DefinitionsFile != "" {
		keys.Definitions, definitionsErr = lfk.LoadDefinitions(keys.DefinitionsFile)
	}
	return errors.Join(tokenErr, tlsErr, definitionsErr)
}

// tls are the settings of the server that concern TLS.
func (s *settings) tls() server.Config {
	return server.Config{
		CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile, ClientCAFile: s.TLS.ClientCAFile,
	}
}

// access has the permissions of the configuration. Its error names the file that is wrong.
func (s *settings) access(logger *slog.Logger) (*access.Keys, error) {
	return access.New(access.Config{
		Token: s.Auth.Token, TokenFile: s.Auth.TokenFile, TokensFile: s.Auth.TokensFile,
		Certificates: s.Auth.Certificates, Workers: workerNames(), Logger: logger,
	})
}

// workerNames are the names of all workers.
func workerNames() (names []string) {
	for section := range new(service.Config).Sections() {
		names = append(names, strings.TrimPrefix(section, "workers."))
	}
	return names
}
