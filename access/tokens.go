package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// token is a token that clients send.
type token struct {
	Client
	hash [sha256.Size]byte
	// expires is the zero time for a token without expiry.
	expires time.Time
}

// entry is a token in the file.
type entry struct {
	Name    string    `yaml:"name"`
	SHA256  string    `yaml:"sha256"`
	Role    yaml.Node `yaml:"role"`
	Workers yaml.Node `yaml:"workers"`
	Expires yaml.Node `yaml:"expires"`
}

// Limits of a token file.
const (
	maxTokensFile = 1 << 20
	maxTokenName  = 100
)

// checkInterval is the minimum interval between checks for a changed file.
const checkInterval = time.Second

// warnInterval is the minimum interval between log lines about an unreadable file.
const warnInterval = time.Minute

// tokensFile is a token file that is read again after a change.
type tokensFile struct {
	path    string
	workers []string
	logger  *slog.Logger

	mu      sync.Mutex
	tokens  []*token
	checked time.Time
	// seen is the last read content, nil if the content was invalid. wrong then has the error.
	seen  []byte
	wrong string
	// warned is the time of the last warning.
	warned time.Time
}

// current returns the tokens, including expired ones.
func (f *tokensFile) current() []*token {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.checked) >= checkInterval {
		f.reloadLocked()
	}
	return f.tokens
}

// reloadLocked reads the file again, and logs the reload or the error.
func (f *tokensFile) reloadLocked() {
	f.checked = time.Now()
	switch changed, err := f.readLocked(); {
	case err == nil && !changed:
	case err == nil:
		f.wrong = ""
		f.logger.Info("token file reloaded", "tokens", len(f.tokens))
	case err.Error() != f.wrong || time.Since(f.warned) >= warnInterval:
		f.warned = time.Now()
		f.wrong = err.Error()
		f.logger.Error("token file not loaded, previous tokens stay valid", "error", f.wrong)
	}
}

// read reads the file for the first time.
func (f *tokensFile) read() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked = time.Now()
	_, err := f.readLocked()
	if err == nil && len(f.tokens) == 0 {
		return fmt.Errorf("auth.tokens_file: %s contains no tokens: add a token", f.path)
	}
	return err
}

// readLocked replaces the tokens if the content has changed and is valid. Comparing size and time
// is not enough, because a copy may keep both.
func (f *tokensFile) readLocked() (changed bool, err error) {
	content, err := f.content()
	if err == nil && f.seen != nil && bytes.Equal(content, f.seen) {
		return false, nil
	}
	f.seen = nil
	if err != nil {
		return false, fmt.Errorf("auth.tokens_file: %w", err)
	}
	tokens, err := parse(content, f.workers)
	if err != nil {
		return false, fmt.Errorf("auth.tokens_file: %s: %s", f.path, masked(err.Error()))
	}
	f.tokens, f.seen = tokens, content
	return true, nil
}

func (f *tokensFile) content() ([]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxTokensFile+1))
	if err == nil && len(content) > maxTokensFile {
		err = fmt.Errorf("%s is larger than the limit of %d bytes: remove unused tokens", f.path, maxTokensFile)
	}
	return content, err
}

// parse parses a list of tokens. Its error names the entry by position and name.
func parse(content []byte, workers []string) (tokens []*token, err error) {
	var entries []entry
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&entries); err != nil && !errors.Is(err, io.EOF) {
		// The error may quote a token from the file.
		text := regexp.MustCompile("`[^`]*`").ReplaceAllString(err.Error(), "a value")
		text = regexp.MustCompile(`yaml: unmarshal errors:\s+|(?: in type | into )\S+`).ReplaceAllString(text, "")
		return nil, errors.New("must be a list of entries with the keys name, sha256, role, " +
			"workers and expires: " + strings.ReplaceAll(text, "\n ", ","))
	}
	// A partly written file may be empty, so only [] removes all tokens.
	if entries == nil {
		return nil, errors.New("no tokens found: add a token, or write [] while the server is running to revoke all tokens")
	}
	var second yaml.Node
	if !errors.Is(decoder.Decode(&second), io.EOF) {
		return nil, errors.New("more than one YAML document found: use only one")
	}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i, e := range entries {
		t, err := e.token(workers)
		switch {
		case err != nil:
		case names[t.Name]:
			err = errors.New("another token has the same name: use a unique name")
		case hashes[t.hash]:
			err = errors.New("another token has the same sha256: use a different token")
		}
		if err != nil {
			return nil, fmt.Errorf("token %d (%q): %w", i+1, e.Name, err)
		}
		names[t.Name], hashes[t.hash] = true, true
		tokens = append(tokens, t)
	}
	return tokens, nil
}

// long matches a possible token in the wrong place.
var long = regexp.MustCompile(`[^\s"]{30,}`)

// masked returns a message about the file without possible secrets.
func masked(message string) string {
	return long.ReplaceAllStringFunc(message, func(word string) string {
		return fmt.Sprintf("(%d hidden characters)", len([]rune(word)))
	})
}

// token checks an entry.
func (e entry) token(workers []string) (*token, error) {
	hash, err := hex.DecodeString(e.SHA256)
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	unknown := func(name string) bool { return !slices.Contains(workers, name) }
	restricted := !e.Workers.IsZero()
	var only []string
	if restricted && e.Workers.Decode(&only) != nil {
		return nil, errors.New("workers must be a list of worker names")
	}
	role, wrongRole := e.role()
	switch {
	case e.Name == "" || len([]rune(e.Name)) > maxTokenName ||
		strings.ContainsFunc(e.Name, unprintable) || strings.TrimSpace(e.Name) != e.Name:
		return nil, fmt.Errorf("name must have 1 to %d printable characters, with no spaces at the ends", maxTokenName)
	case err != nil || len(hash) != sha256.Size:
		const wrong = "sha256 must be 64 hexadecimal digits: to compute the hash, run `printf %s TOKEN | sha256sum`"
		return nil, errors.Join(errors.New(wrong), wrongRole)
	case wrongRole != nil:
		return nil, wrongRole
	case [sha256.Size]byte(hash) == sha256.Sum256(nil):
		return nil, errors.New("sha256 is the hash of an empty string: use the hash of the token")
	case restricted && role != Operator:
		return nil, errors.New("workers is allowed only with the role operator: remove the key")
	case restricted && len(only) == 0:
		return nil, errors.New("workers is empty: remove the key to allow all workers")
	}
	if i := slices.IndexFunc(only, unknown); i >= 0 {
		return nil, fmt.Errorf("unknown worker %q: known workers are %s", only[i],
			strings.Join(workers, ", "))
	}
	expires, err := e.expiry()
	client := Client{Name: e.Name, Role: role, Workers: only}
	return &token{client, [sha256.Size]byte(hash), expires}, err
}

// role is decoded here, so that its error has the entry's name.
func (e entry) role() (role Role, err error) {
	word := ""
	if e.Role.Decode(&word) != nil || word == "" {
		return None, errors.New("role is required: use viewer, operator or admin")
	}
	if err := role.UnmarshalText([]byte(word)); err != nil {
		return None, fmt.Errorf("role: %w", err)
	}
	return role, nil
}

// expiry returns the time of the expiry. A day expires at its beginning in UTC.
func (e entry) expiry() (time.Time, error) {
	if e.Expires.IsZero() {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, e.Expires.Value); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("expires: %q is neither a time such as 2027-01-31T12:00:00Z nor "+
		"a date such as 2027-01-31", e.Expires.Value)
}
