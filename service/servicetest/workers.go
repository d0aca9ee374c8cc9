package servicetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/status"
)

// Workers are the names of all workers, in the order of the list.
func Workers() (names []string) {
	for key := range new(service.Config).Sections() {
		names = append(names, strings.TrimPrefix(key, "workers."))
	}
	return names
}

// Audited enables orphan_audit, which is not shown among all workers before.
func Audited(c *service.Config) { service.Settings[orphans.Config](c).Enabled = new(true) }

// Configured returns the names of the workers that have all they need on a service's databases.
func Configured(t *testing.T, s *service.Service) (names []string) {
	t.Helper()
	all, err := s.Status(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range all {
		if st.Condition != status.ConditionNotConfigured {
			names = append(names, st.Worker)
		}
	}
	return names
}

// Configuration writes a configuration file and returns its path. Settings are those of a worker, as in the file.
// Limits of the load are off, unless load sets some.
func Configuration(t *testing.T, worker string, settings map[string]string, load string) string {
	t.Helper()
	lines := []string{"load: {max_replica_lag: 0s, max_lock_wait: 0s" + load + "}"}
	if len(settings) > 0 {
		lines = append(lines, "workers:", "  "+worker+":")
	}
	for key, value := range settings {
		lines = append(lines, fmt.Sprintf("    %s: %s", key, value))
	}
	path := filepath.Join(t.TempDir(), "caretaker.yml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ConfiguredBy reads the settings of a service from a configuration file.
func ConfiguredBy(t *testing.T, file string) func(*service.Config) {
	t.Helper()
	return func(c *service.Config) {
		t.Helper()
		if _, err := config.OfProcess().LoadPartial(file, c); err != nil {
			t.Fatal(err)
		}
	}
}
