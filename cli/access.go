package cli

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
)

// access is who may do what, by the configuration. Its error says what is wrong with a file.
func (s *settings) access(logger *slog.Logger) (*access.Keys, error) {
	token, err := bearerToken(s.Auth)
	if err != nil {
		return nil, err
	}
	return access.New(access.Config{
		Token: token, TokensFile: s.Auth.TokensFile, Certificates: s.Auth.Certificates,
		Workers: workerNames(), Logger: logger,
	})
}

// workerNames are those of the list of workers.
func workerNames() (names []string) {
	for section := range new(service.Config).Sections() {
		names = append(names, strings.TrimPrefix(section, "workers."))
	}
	return names
}

func bearerToken(auth config.Auth) (string, error) {
	if auth.TokenFile == "" {
		return auth.Token, nil
	}
	content, err := os.ReadFile(auth.TokenFile)
	if err != nil {
		return "", fmt.Errorf("auth.token_file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("auth.token_file: %s is empty", auth.TokenFile)
	}
	return token, nil
}

// onlyHere reports whether only this host can reach an address.
func onlyHere(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// nearby reports whether the address is of this machine.
func (c *connection) nearby() bool {
	return strings.HasPrefix(c.address, "unix") || config.Loopback(c.address)
}
