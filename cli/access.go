package cli

import (
	"log/slog"
	"net"
	"strings"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
)

// access is who may do what, by the configuration. Its error says what is wrong with a file.
func (s *settings) access(logger *slog.Logger) (*access.Keys, error) {
	return access.New(access.Config{
		Token: s.Auth.Token, TokenFile: s.Auth.TokenFile, TokensFile: s.Auth.TokensFile,
		Certificates: s.Auth.Certificates, Workers: workerNames(), Logger: logger,
	})
}

// workerNames are those of the list of workers.
func workerNames() (names []string) {
	for section := range new(service.Config).Sections() {
		names = append(names, strings.TrimPrefix(section, "workers."))
	}
	return names
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
