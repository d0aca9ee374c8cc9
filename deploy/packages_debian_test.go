//go:build packages

package deploy_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

var databases devdb.Tests

func TestMain(m *testing.M) {
	code := databases.Run(m)
	if built.first != "" {
		_ = os.RemoveAll(filepath.Dir(built.first))
	}
	os.Exit(code)
}

// machine is a Debian without anything but what every Debian has, in a folder.
type machine struct {
	*testing.T
	root string
}

func debian(t *testing.T) machine {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	release := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)`).FindStringSubmatch(read(t, "/etc/os-release"))
	output(t, "mmdebstrap", "--quiet", "--variant=essential", "--include=adduser", release[1], root)
	// A t.TempDir is its maker's alone. The user caretaker has to get at what is in it.
	for folder := root; folder != os.TempDir() && folder != "/"; folder = filepath.Dir(folder) {
		assert.NoError(t, os.Chmod(folder, 0o755))
	}
	return machine{t, root}
}

// run runs a command of a shell on the machine, which has to succeed.
func (m machine) run(command string) string {
	m.Helper()
	out, err := m.command(command).CombinedOutput()
	if err != nil {
		m.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func (m machine) command(command string) *exec.Cmd {
	c := exec.Command("chroot", m.root, "/bin/sh", "-c", command)
	c.Env = []string{"PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return c
}

// install installs a package file, and returns what that reports. Where the configuration has been
// edited and the package has another one, the edited one stays, which is dpkg's own default.
func (m machine) install(deb string) string {
	m.Helper()
	output(m.T, "cp", deb, m.root+"/caretaker.deb")
	return m.run("dpkg --force-confold -i /caretaker.deb")
}

func (m machine) write(path, content string, mode os.FileMode) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(m.root+path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(m.root+path, []byte(content), mode); err != nil {
		m.Fatal(err)
	}
}

// wantFile fails the test unless the file is there, or is not.
func (m machine) wantFile(path string, there bool) {
	m.Helper()
	if _, err := os.Lstat(m.root + path); (err == nil) != there {
		m.Errorf("%s is there: %t, want %t", path, !there, there)
	}
}

// pretendSystemd makes the scripts believe that systemd runs, and notes what they ask it for.
func (m machine) pretendSystemd() (calls func() string) {
	m.Helper()
	m.run("mkdir -p /run/systemd/system")
	for _, path := range []string{"/usr/bin/systemctl", "/usr/local/sbin/deb-systemd-invoke"} {
		m.write(path, "#!/bin/sh\necho "+filepath.Base(path)+" \"$@\" >>/calls\n", 0o755)
	}
	return func() string {
		content, _ := os.ReadFile(m.root + "/calls")
		_ = os.Remove(m.root + "/calls")
		return string(content)
	}
}

func TestDebian_FromInstallationToPurge(t *testing.T) {
	first, later := built.folders(t)
	m := debian(t)
	said := m.install(file(t, first, ".deb"))
	m.wantInstalled()
	m.wantWorking(said)

	const edited = "log:\n  level: debug\n"
	m.write("/etc/caretaker/caretaker.yml", edited, 0o644)
	m.write("/etc/caretaker/tokens.yml", "[]\n", 0o640)
	m.write("/etc/caretaker/caretaker.yml.9.bak", edited, 0o640)
	environment := m.run("cat /etc/caretaker/caretaker.env; stat -c %A:%U:%G /etc/caretaker/caretaker.env")
	calls := m.pretendSystemd()
	if said := m.install(file(t, later, ".deb")); strings.Contains(said, "does not run yet") {
		t.Errorf("an upgrade speaks as a first installation: %s", said)
	}
	want(t, calls(), "systemctl --system daemon-reload", "deb-systemd-invoke try-restart caretaker.service")
	want(t, m.run("dpkg -s caretaker"), "Version: "+newer)
	assert.Equal(t, m.run("cat /etc/caretaker/caretaker.yml"), edited,
		"the upgrade changed the configuration to")
	got := m.run("cat /etc/caretaker/caretaker.env; stat -c %A:%U:%G /etc/caretaker/caretaker.env")
	assert.That(t, got == environment, "the upgrade changed the environment to %s", got)

	m.run("dpkg -r caretaker")
	want(t, calls(), "deb-systemd-invoke stop caretaker.service", "systemctl --quiet disable caretaker.service")
	m.wantFile("/usr/bin/caretaker", false)
	m.wantFile("/usr/lib/systemd/system/caretaker.service", false)
	m.wantFile("/etc/caretaker/caretaker.yml", true)
	m.run("getent passwd caretaker")

	// Without systemd, as in a container, nothing is asked for and nothing fails.
	m.run("rm -r /run/systemd /usr/bin/systemctl /usr/local/sbin/deb-systemd-invoke")
	m.install(file(t, later, ".deb"))
	m.run("dpkg -P caretaker")
	m.wantFile("/etc/caretaker/caretaker.yml", false)
	m.wantFile("/etc/caretaker/caretaker.env", false)
	m.wantFile("/etc/caretaker/caretaker.yml.9.bak", false)
	m.wantFile("/etc/caretaker/loose_foreign_keys.yml", false)
	m.wantFile("/etc/caretaker/tokens.yml", true)
	m.run("! getent passwd caretaker && ! getent group caretaker")
}

// wantInstalled fails the test unless everything is where it belongs.
func (m machine) wantInstalled() {
	m.Helper()
	for _, path := range []string{
		"/usr/bin/caretaker", "/usr/lib/systemd/system/caretaker.service", "/etc/caretaker/caretaker.yml",
		"/usr/share/man/man1/caretaker.1.gz", "/usr/share/man/man1/caretaker-lfk-lint.1.gz",
		"/usr/share/bash-completion/completions/caretaker", "/usr/share/zsh/vendor-completions/_caretaker",
		"/usr/share/fish/vendor_completions.d/caretaker.fish", "/usr/share/caretaker/prometheus/alerts.yml",
		"/usr/share/caretaker/prometheus/alerts-loose-foreign-keys.yml",
		"/usr/share/caretaker/grafana/caretaker.json", "/usr/share/doc/caretaker/copyright",
		"/usr/share/doc/caretaker/NOTICE", "/usr/share/doc/caretaker/LICENSES.txt",
		"/usr/share/doc/caretaker/README.md", "/usr/share/doc/caretaker/guides/security.md",
	} {
		m.wantFile(path, true)
	}
	want(m.T, m.run("stat -c '%n %A %U %G' /etc/caretaker /etc/caretaker/* /usr/bin/caretaker"),
		"/etc/caretaker drwxr-xr-x root root", "/etc/caretaker/caretaker.yml -rw-r--r-- root root",
		"/etc/caretaker/caretaker.env -rw-r----- root caretaker", "/usr/bin/caretaker -rwxr-xr-x root root")
	want(m.T, m.run("getent passwd caretaker"), ":/nonexistent:/usr/sbin/nologin")
	want(m.T, m.run("dpkg-query -W -f '${Conffiles}' caretaker"), "/etc/caretaker/caretaker.yml", "/etc/caretaker/caretaker.env")
	m.run("! grep -q . /etc/caretaker/caretaker.env || ! runuser -u nobody -- cat /etc/caretaker/caretaker.env")
}

// wantWorking fails the test unless what the installation reports makes a server that works,
// started as the unit starts it.
func (m machine) wantWorking(said string) {
	m.Helper()
	url := databases.Clone(m, devdb.Template{Name: "bare", Schema: "main"})
	m.run("cat >>/etc/caretaker/caretaker.env <<'END'\nCARETAKER_LISTEN='127.0.0.1:0'\n" +
		"CARETAKER_METRICS_LISTEN=''\nCARETAKER_WEB_LISTEN=''\nEND")
	// The service reads the URL from the file that init writes: no variable has it.
	const file = "/etc/caretaker/caretaker.yml"
	for range 2 {
		m.run("caretaker init --force --use gitlab --config " + file + " --url '" + url + "'")
		want(m.T, m.run("stat -c %a:%U:%G "+file), "640:root:caretaker")
		want(m.T, m.run("runuser -u caretaker -- cat "+file), url)
		m.run("! runuser -u nobody -- cat " + file)
		m.run("chown root:root " + file + "; chmod 600 " + file)
	}
	m.run("caretaker init --force --use gitlab --config " + file + " --url '" + url + "'")
	found := regexp.MustCompile(`(?s)  (runuser .*?\.yml')`).FindStringSubmatch(said)
	if found == nil {
		m.Fatalf("the installation does not say how to migrate: %s", said)
	}
	migrate := found[1]
	want(m.T, m.run(migrate), "main: applied")

	start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/(.*)$`).FindStringSubmatch(read(m.T, "packages/caretaker.service"))[1]
	serve := regexp.MustCompile(`(?s)caretaker migrate.*?'`).ReplaceAllLiteralString(migrate, "exec "+start+"'")
	var log bytes.Buffer
	c := m.command("exec " + serve)
	lines, err := c.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.Context())
	stop := context.AfterFunc(ctx, func() { _ = c.Process.Signal(syscall.SIGTERM) })
	defer stop()
	defer cancel()
	address := ""
	for part := make([]byte, 4096); address == ""; {
		n, err := lines.Read(part)
		if log.Write(part[:n]); err != nil {
			m.Fatalf("the server ended: %v\n%s", err, log.String())
		}
		if at := regexp.MustCompile(`"msg":"serving".*?"listen":"([^"]+)"`).FindStringSubmatch(log.String()); at != nil {
			address = at[1]
		}
	}
	want(m.T, m.run("runuser -u nobody -- caretaker status --address "+address), "loose_foreign_keys_cleanup")
}
