package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
)

const installedConfiguration = "packages/caretaker.yml"

// setting is a key that is commented out. prose has a space after its #.
var setting = regexp.MustCompile(`(?m)^( *)#([a-z_]+: )`)

func load(t *testing.T, content string, environment ...string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "caretaker.yml")
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return config.Environment(environment).Load(file, &service.Config{})
}

func TestInstalledConfiguration_IsEveryKeyAndValidWithAllOfThem(t *testing.T) {
	t.Parallel()
	content := read(t, installedConfiguration)
	all := setting.ReplaceAllString(content, "$1$2")
	c := assert.Must(load(t, all))(t)
	assert.That(t, len(c.Databases) == 2 && c.TLS.CertFile != "" && c.WebListen != "", "the examples are not there: %+v", c)
	keys := new(config.Config).Keys(&service.Config{})
	assert.Equal(t, len(setting.FindAllString(content, -1)), len(keys), "keys")
	for line := range strings.Lines(content) {
		assert.That(t, len(line) <= 101, "longer than 100 columns: %s", line)
	}
}

func TestInstalledConfiguration_SetsNothingByItself(t *testing.T) {
	t.Parallel()
	const url = "CARETAKER_DATABASES_MAIN_URL=postgres://caretaker@db.example/application"
	c := assert.Must(load(t, read(t, installedConfiguration), url))(t)
	plain, err := load(t, "", url)
	assert.That(t, err == nil && c.Listen == plain.Listen && c.TLS == plain.TLS &&
		c.Auth.TokensFile == "" && slices.Equal(c.Databases, plain.Databases),
		"%+v, want %+v; %v", c, plain, err)
}

func TestInstalledEnvironment_HasNamesThatTheServerKnows(t *testing.T) {
	t.Parallel()
	var environment []string
	for line := range strings.Lines(read(t, "packages/caretaker.env")) {
		name, value, is := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "#"), "=")
		if !is || !strings.HasPrefix(name, "CARETAKER_") {
			continue
		}
		assert.That(t, strings.HasPrefix(value, "'") && strings.HasSuffix(value, "'"),
			"%s: a shell and systemd read it alike in single quotes only", name)
		environment = append(environment, name+"="+strings.Trim(value, "'"))
	}
	if _, err := load(t, "", environment...); err != nil || len(environment) < 2 {
		t.Errorf("%v: %v", environment, err)
	}
}

func TestKubernetesConfiguration_IsValid(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"caretaker.env", "migrate.env"} {
		var environment []string
		for line := range strings.Lines(read(t, "kubernetes/"+file)) {
			environment = append(environment, strings.TrimSpace(line))
		}
		c, err := load(t, read(t, "kubernetes/caretaker.yml"), environment...)
		assert.That(t, err == nil && c.Auth.TokensFile != "" && c.Databases[0].URL != "", "%s: %+v: %v", file, c, err)
	}
}
