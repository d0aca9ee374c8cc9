package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/texts"
)

// maxLogWords is the maximum number of words of a log message.
const maxLogWords = 8

// forbidden are the patterns of the word table of tools/vale that Go's regular expressions know.
// The others have lookarounds, and are left to Vale.
func forbidden(t *testing.T) (patterns []*regexp.Regexp) {
	t.Helper()
	for _, name := range []string{"Terms", "Actors"} {
		var rule struct {
			Swap   map[string]string
			Tokens []string
		}
		content := assert.Must(os.ReadFile("tools/vale/styles/Caretaker/" + name + ".yml"))(t)
		assert.NoError(t, yaml.Unmarshal(content, &rule))
		for pattern := range rule.Swap {
			rule.Tokens = append(rule.Tokens, pattern)
		}
		for _, pattern := range rule.Tokens {
			if compiled, err := regexp.Compile(`(?i)\b(?:` + pattern + `)\b`); err == nil {
				patterns = append(patterns, compiled)
			}
		}
	}
	assert.That(t, len(patterns) > 20, "only %d patterns", len(patterns))
	return patterns
}

func TestMessages_FollowTheRulesOfPlainEnglish(t *testing.T) {
	patterns, all := forbidden(t), collectTexts(t)
	logs := slices.Concat(all.Debug, all.Logs)
	for _, m := range logs {
		words := len(strings.Fields(m.Text))
		assert.That(t, words <= maxLogWords, "%s: a log message of %d words: %s", m.Place, words, m.Text)
	}
	for _, m := range all.Errors {
		assert.That(t, !strings.HasSuffix(m.Text, "."), "%s: an error ends with a full stop: %s", m.Place, m.Text)
		first, second := []rune(m.Text + "  ")[0], []rune(m.Text + "  ")[1]
		assert.That(t, !unicode.IsUpper(first) || unicode.IsUpper(second) || knownName(m.Text),
			"%s: an error begins with a capital letter: %s", m.Place, m.Text)
	}
	for _, m := range slices.Concat(logs, all.Errors, all.Others) {
		for _, pattern := range patterns {
			found := pattern.FindString(m.Text)
			assert.That(t, found == "", "%s: tools/vale has a better term for %q: %s", m.Place, found, m.Text)
		}
	}
	assert.That(t, len(logs) > 80 && len(all.Errors) > 100 && len(all.Others) > 50,
		"only %d, %d and %d messages found", len(logs), len(all.Errors), len(all.Others))
}

// knownName reports whether a text begins with the name of a product or of a method of the API.
func knownName(text string) bool {
	return regexp.MustCompile(`^(PostgreSQL|OpenTelemetry|ListRuns|ListJobs)\b`).MatchString(text)
}

// collectTexts collects the texts of production code.
func collectTexts(t *testing.T) (all texts.Texts) {
	t.Helper()
	for part := range ceilings {
		if strings.Contains(part, "/") {
			continue
		}
		assert.NoError(t, filepath.WalkDir(part, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() || strings.Contains(path, "servicetest") || strings.Contains(path, "testdata") {
				return err
			}
			return all.AddPackage(path)
		}))
	}
	return all
}
