package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestManual_HasAPageForEveryCommand(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	assert.NoError(t, write(folder, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)))
	pages := 0
	err := each(cli.Root(cli.Streams{}), func(c *cobra.Command) error {
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		content, err := os.ReadFile(filepath.Join(folder, name+".1"))
		if err != nil {
			return err
		}
		wants := []string{name + " - " + c.Short, "EXIT STATUS", "skipped: lease held", "usage: bad arguments", "Nov 2026"}
		if !c.HasParent() {
			wants = append(wants, "/caretaker/blob/main/docs/README.md", "/usr/share/doc/caretaker")
		}
		for line := range strings.Lines(c.Example) {
			wants = append(wants, strings.TrimSpace(line))
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				wants = append(wants, "--"+f.Name)
			}
		})
		text := rendered(t, name, content)
		for _, want := range wants {
			if !strings.Contains(text, strings.Join(strings.Fields(want), " ")) {
				t.Errorf("%s: %q is not in\n%s", name, want, text)
			}
		}
		return nil
	})
	assert.That(t, err == nil && pages >= 35, "%d pages, %v", pages, err)
	if entries, err := os.ReadDir(folder); err != nil || len(entries) < pages {
		t.Errorf("%d files, %v", len(entries), err)
	}
}

// rendered is a page as its reader sees it, with single blanks. groff must have nothing to complain
// of. Where it is not installed the source is read without its marks.
func rendered(t *testing.T, name string, content []byte) string {
	t.Helper()
	if !bytes.HasPrefix(content, []byte(".nh\n.TH ")) || bytes.Count(content, []byte("\n.SH ")) < 4 {
		t.Errorf("%s is no page:\n%s", name, content)
	}
	text := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "", `\fR`, "", `\&`, "").Replace(string(content))
	if _, err := exec.LookPath("groff"); err == nil {
		var out, complaints bytes.Buffer
		groff := exec.Command("groff", "-Kutf8", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=400n")
		groff.Stdin, groff.Stdout, groff.Stderr = bytes.NewReader(content), &out, &complaints
		if err := groff.Run(); err != nil || complaints.Len() > 0 {
			t.Errorf("%s: %v: %s", name, err, &complaints)
		}
		text = strings.NewReplacer("‐", "-", "−", "-", "’", "'", "‘", "'").Replace(out.String())
	}
	return strings.Join(strings.Fields(text), " ")
}

func TestProgram_DoesNotHaveTheConverter(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../..").CombinedOutput()
	assert.That(t, err == nil && !bytes.Contains(out, []byte("md2man")), "%v: the program has the converter of manual pages", err)
}
