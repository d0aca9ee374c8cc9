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
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Client has the settings with which commands reach a server and show its answers. Files are PEM,
// except for the token file.
type Client struct {
	Address   string `yaml:"address"`
	TLS       bool   `yaml:"tls"`
	CAFile    string `yaml:"tls_ca"`
	CertFile  string `yaml:"tls_cert"`
	KeyFile   string `yaml:"tls_key"`
	TokenFile string `yaml:"token_file"`
	// Local shows times in the zone of the machine, not UTC.
	Local bool `yaml:"local"`
	// AddressSource is the variable or the profile that sets the address.
	AddressSource string `yaml:"-"`
}

// profiles is the file of profiles.
type profiles struct {
	// Default is the profile that is used if no profile is named.
	Default  string            `yaml:"default"`
	Profiles map[string]Client `yaml:"profiles"`
}

// clientPrefix begins the variables of clients. They are not keys, and serve ignores them.
const clientPrefix = "CARETAKER_CLIENT_"

// ClientVariables returns the variables of clients.
func ClientVariables() []string {
	var names []string
	for _, name := range []string{"PROFILE", "TLS", "CA_FILE", "CERT_FILE", "KEY_FILE", "TOKEN_FILE", "LOCAL"} {
		names = append(names, clientPrefix+name)
	}
	return names
}

// ProfilesFile returns the path of the profiles, caretaker/client.yml in the user's configuration
// directory. It returns "" if that directory is unknown.
func (e Environment) ProfilesFile() string {
	directory := e.configDirectory()
	if directory == "" {
		return ""
	}
	return filepath.Join(directory, "caretaker", "client.yml")
}

// ReadClient returns the settings of the environment, completed by a profile. That is the named
// one, else that of the environment, else the file's default. An error names the file or the
// variable.
func (e Environment) ReadClient(profile string) (Client, error) {
	profile = cmp.Or(profile, e.get(clientPrefix+"PROFILE"))
	c, err := readProfile(e.ProfilesFile(), profile)
	if err != nil {
		return c, err
	}
	if address := e.get(AddressVariable); address != "" {
		c.Address, c.AddressSource = address, AddressVariable
	}
	for name, to := range map[string]*bool{"TLS": &c.TLS, "LOCAL": &c.Local} {
		switch value := e.get(clientPrefix + name); value {
		case "":
		case "true", "false":
			*to = value == "true"
		default:
			return c, fmt.Errorf("%s%s: %q is neither true nor false", clientPrefix, name, value)
		}
	}
	for name, to := range map[string]*string{
		"CA_FILE": &c.CAFile, "CERT_FILE": &c.CertFile, "KEY_FILE": &c.KeyFile, "TOKEN_FILE": &c.TokenFile,
	} {
		*to = cmp.Or(e.get(clientPrefix+name), *to)
	}
	return c, nil
}

// AllowsColor reports whether the environment allows colors on a terminal: see no-color.org.
func (e Environment) AllowsColor() bool {
	return e.get("NO_COLOR") == "" && e.get("TERM") != "dumb"
}

// ProfileNames returns the names of the profiles, none if their file is unreadable.
func (e Environment) ProfileNames() []string {
	all, err := readProfiles(e.ProfilesFile())
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
		return c, fmt.Errorf("%s: profile %q not found: known profiles are "+
			"%s", file, name, cmp.Or(known, "none"))
	}
	c.AddressSource = fmt.Sprintf("address in profile %q", name)
	return c, nil
}

func readProfiles(file string) (all profiles, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("cannot read the profiles: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&all); err != nil && !errors.Is(err, io.EOF) {
		ofGo := regexp.MustCompile(`yaml: unmarshal errors:\s+|(?: in type | into )\S+`)
		return all, fmt.Errorf("%s: %s", file, strings.ReplaceAll(ofGo.ReplaceAllString(err.Error(), ""), "\n ", ","))
	}
	return all, nil
}
