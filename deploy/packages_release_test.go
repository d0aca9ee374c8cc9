//go:build packages

package deploy_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// newer is the number of a release that every other one is upgraded to.
const newer = "999.0.0"

// release builds a release of the last commit for this architecture, and returns its folder.
func release(folder string, environment ...string) (string, error) {
	c := exec.Command("../tools/release.sh", "linux/"+runtime.GOARCH)
	c.Env = append(append(os.Environ(), "OUT="+folder), environment...)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", &failure{err, string(out)}
	}
	return folder, nil
}

type failure struct {
	error
	out string
}

func (f *failure) Error() string { return f.error.Error() + "\n" + f.out }

// releases are the two that several tests check, made once.
type releases struct {
	once         sync.Once
	first, later string
	err          error
}

var built releases

func (r *releases) folders(t *testing.T) (first, later string) {
	t.Helper()
	r.once.Do(func() {
		base, err := os.MkdirTemp("", "caretaker-release-")
		if err != nil {
			r.err = err
			return
		}
		if r.first, r.err = release(filepath.Join(base, "first")); r.err == nil {
			r.later, r.err = release(filepath.Join(base, "later"), "NUMBER="+newer)
		}
	})
	assert.Require(t, r.err == nil, "%v", r.err)
	return r.first, r.later
}

// file is the one file of a folder with a name that ends so.
func file(t *testing.T, folder, end string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, "*"+end))
	assert.Require(t, err == nil && len(found) == 1, "%s has %v for %s: %v", folder, found, end, err)
	return found[0]
}

// output runs a command and returns what it prints.
func output(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	assert.Require(t, err == nil, "%s: %v\n%s", strings.Join(command, " "), err, out)
	return string(out)
}

// want fails the test unless the text has all these parts.
func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		assert.That(t, strings.Contains(text, part), "%q is not in\n%s", part, text)
	}
}

// The second one is built by another cache, in another folder, as all are.
func TestRelease_IsTheSameEachTime(t *testing.T) {
	first, _ := built.folders(t)
	again := assert.Must(release(t.TempDir(), "GOCACHE="+t.TempDir(), "TZ=Pacific/Auckland"))(t)
	if a, b := read(t, first+"/SHA256SUMS"), read(t, again+"/SHA256SUMS"); a != b {
		t.Errorf("the sums differ:\n%s\n%s", a, b)
	}
}

func TestRelease_ArchiveHasAProgramThatKnowsItsCommit(t *testing.T) {
	first, _ := built.folders(t)
	c := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	c.Dir = first
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	archive := file(t, first, ".tar.gz")
	folder := t.TempDir()
	output(t, "tar", "-xzf", archive, "-C", folder, "--strip-components=1")
	commit := strings.TrimSpace(output(t, "git", "rev-parse", "HEAD"))
	version := output(t, folder+"/caretaker", "version")
	want(t, version, commit, "  date    20")
	assert.That(t, !strings.Contains(version, "modified"), "built from what is not committed: %s", version)
	for _, name := range []string{
		"LICENSE", "NOTICE", "LICENSES.txt", "CHANGELOG.md", "caretaker.yml", "caretaker.env",
		"caretaker.service", "completions/caretaker.bash", "completions/_caretaker",
		"completions/caretaker.fish", "man/man1/caretaker-serve.1.gz", "prometheus/alerts.yml",
		"prometheus/alerts-loose-foreign-keys.yml", "prometheus/rules.yml", "grafana/caretaker.json",
		"docs/README.md", "docs/guides/security.md", "docs/reference/configuration.md",
	} {
		info := assert.Must(os.Stat(filepath.Join(folder, name)))(t)
		assert.That(t, info.Size() >= 100, "%s", name)
	}
	wantLinked(t, folder+"/docs")
	output(t, "bash", "-n", folder+"/completions/caretaker.bash")
	content, err := os.ReadFile(folder + "/caretaker")
	assert.That(t, err == nil, "%v", err)
	for _, folder := range []string{output(t, "git", "rev-parse", "--show-toplevel"), output(t, "go", "env", "GOMODCACHE")} {
		assert.That(t, !bytes.Contains(content, []byte(strings.TrimSpace(folder)+"/")),
			"the program has a path of the machine it was built on: %s", folder)
	}
	want(t, read(t, file(t, first, ".cdx.json")), `"specVersion": "1.6"`, commit,
		"pkg:golang/github.com/jackc/pgx/v5@", "pkg:golang/std@go", `"id": "MPL-2.0"`)
}

var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)`)

// wantLinked fails the test for a link of a page in the folder to a file that is not there.
func wantLinked(t *testing.T, folder string) {
	t.Helper()
	pages := 0
	assert.NoError(t, filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		assert.Lacks(t, path, "contributing")
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		pages++
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			assert.That(t, err == nil, "%s: %s leads nowhere", path, m[0])
		}
		return nil
	}))
	assert.That(t, pages >= 40, "%d pages", pages)
}

// The unit may be exposed to 1.2 of 10, as docs/getting-started/install.md reports.
func TestUnit_IsValidAndHardlyExposed(t *testing.T) {
	const unit, units = "packages/caretaker.service", "usr/lib/systemd/system/"
	out := output(t, "systemd-analyze", "security", "--offline=true", "--threshold=12", unit)
	want(t, out, "Overall exposure level for caretaker.service: 1.2 OK")
	want(t, read(t, "../docs/getting-started/install.md"), "Overall exposure level for caretaker.service: 1.2 OK")

	root := t.TempDir()
	files := map[string]string{"usr/bin/caretaker": "#!/bin/sh\n", "bin/sh": "", units + "caretaker.service": read(t, unit)}
	// The default dependencies of every unit.
	for _, name := range []string{"sysinit", "basic", "shutdown", "network-online"} {
		files[units+name+".target"] = "[Unit]\n"
	}
	files[units+"system.slice"], files[units+"-.mount"] = "[Slice]\n", "[Mount]\nWhat=/dev/sda\nWhere=/\n"
	for path, content := range files {
		assert.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o750))
		assert.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o600))
	}
	for _, program := range []string{"usr/bin/caretaker", "bin/sh"} {
		assert.NoError(t, os.Chmod(filepath.Join(root, program), 0o700))
	}
	if out := output(t, "systemd-analyze", "verify", "--man=no", "--root="+root, "caretaker.service"); out != "" {
		t.Error(out)
	}
}

// An rpm is for machines that have no Debian: what can be tried here is the file and its scripts.
func TestRPM_HasTheFilesAndInstallsUpgradesAndGoes(t *testing.T) {
	first, later := built.folders(t)
	old, young := file(t, first, ".rpm"), file(t, later, ".rpm")
	want(t, output(t, "rpm", "-K", "--nosignature", old), "digests OK")
	want(t, output(t, "rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]", old),
		"/usr/bin/caretaker -rwxr-xr-x root", "/usr/lib/systemd/system/caretaker.service -rw-r--r-- root",
		"/etc/caretaker/caretaker.env -rw-r----- caretaker cn", "/etc/caretaker/caretaker.yml -rw-r--r-- root cn",
		"/usr/share/man/man1/caretaker.1.gz", "/usr/share/zsh/site-functions/_caretaker",
		"/usr/share/doc/caretaker/guides/security.md -rw-r--r-- root")

	m := debian(t)
	rpm := func(args ...string) string {
		return output(t, append([]string{"rpm", "--root", m.root}, args...)...)
	}
	want(t, rpm("-i", "--nodeps", "--nosignature", old), "does not run yet")
	want(t, m.run("stat -c '%A %U %G' /etc/caretaker/caretaker.env; getent passwd caretaker"),
		"-rw-r----- root caretaker", ":/nonexistent:/sbin/nologin")
	const edited = "log: {level: debug}\n"
	m.write("/etc/caretaker/caretaker.yml", edited, 0o644)
	calls := m.pretendSystemd()
	rpm("-U", "--nodeps", "--nosignature", young)
	want(t, calls(), "systemctl try-restart caretaker.service")
	want(t, rpm("-q", "caretaker"), newer)
	assert.Equal(t, m.run("cat /etc/caretaker/caretaker.yml"), edited,
		"the upgrade changed the configuration to")
	rpm("-e", "caretaker")
	want(t, calls(), "systemctl stop caretaker.service", "systemctl --quiet disable caretaker.service")
	m.wantFile("/usr/bin/caretaker", false)
}
