package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Client is how commands reach a server, and show what it says. Files are PEM, except that of the token.
type Client struct {
	Address   string `yaml:"address"`
	TLS       bool   `yaml:"tls"`
	CAFile    string `yaml:"tls_ca"`
	CertFile  string `yaml:"tls_cert"`
	KeyFile   string `yaml:"tls_key"`
	TokenFile string `yaml:"token_file"`
	// Local shows times in the zone of the machine, not UTC.
	Local bool `yaml:"local"`
}

// profiles is the file of profiles.
type profiles struct {
	// Default is the profile that is used if none is named.
	Default  string            `yaml:"default"`
	Profiles map[string]Client `yaml:"profiles"`
}

// clientPrefix is that of the variables of clients. They are no keys: serve ignores them.
const clientPrefix = "CARETAKER_CLIENT_"

// ClientVariables are those variables.
func ClientVariables() []string {
	var names []string
	for _, name := range []string{"PROFILE", "TLS", "CA_FILE", "CERT_FILE", "KEY_FILE", "TOKEN_FILE", "LOCAL"} {
		names = append(names, clientPrefix+name)
	}
	return names
}

// ProfilesFile is where profiles are, "" if nobody knows: caretaker/client.yml in the user's
// directory for configurations.
func ProfilesFile() string {
	directory, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(directory, "caretaker", "client.yml")
}

// ReadClient is what the environment says, and a profile besides: the one that is named, else that
// of the environment, else the default of the file. An error names the file or the variable.
func ReadClient(profile string) (Client, error) {
	profile = cmp.Or(profile, os.Getenv(clientPrefix+"PROFILE"))
	c, err := readProfile(ProfilesFile(), profile)
	if err != nil {
		return c, err
	}
	c.Address = cmp.Or(os.Getenv(AddressVariable), c.Address)
	for name, to := range map[string]*bool{"TLS": &c.TLS, "LOCAL": &c.Local} {
		switch value := os.Getenv(clientPrefix + name); value {
		case "":
		case "true", "false":
			*to = value == "true"
		default:
			return c, fmt.Errorf("%s%s: %q is not true or false", clientPrefix, name, value)
		}
	}
	for name, to := range map[string]*string{
		"CA_FILE": &c.CAFile, "CERT_FILE": &c.CertFile, "KEY_FILE": &c.KeyFile, "TOKEN_FILE": &c.TokenFile,
	} {
		*to = cmp.Or(os.Getenv(clientPrefix+name), *to)
	}
	return c, nil
}

// WantsColours reports whether the environment lets a terminal have colours: see no-color.org.
func WantsColours() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }

// ProfileNames are those of the file, none if it cannot be read.
func ProfileNames() []string {
	all, err := readProfiles(ProfilesFile())
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(all.Profiles))
}

func readProfile(file, name string) (Client, error) {
	all, err := readProfiles(file)
	if err != nil {
		return Client{}, err
	}
	if name = cmp.Or(name, all.Default); name == "" {
		return Client{}, nil
	}
	c, ok := all.Profiles[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(all.Profiles)), ", ")
		return c, fmt.Errorf("%s: there is no profile %q, there are: %s", file, name, cmp.Or(known, "none"))
	}
	return c, nil
}

func readProfiles(file string) (all profiles, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("read the profiles: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&all); err != nil && !errors.Is(err, io.EOF) {
		return all, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}
