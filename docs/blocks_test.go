package docs_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

const inDebian = "make test-packages does this in a bare Debian"

// notRun lists the blocks marked no-test, by page and first command, with what keeps them from being
// run here.
var notRun = map[string]string{
	"README.md: git clone https://github.com/caretaker-go/caretaker && cd caretaker":                                                        "docs/getting-started/try-the-demo.md tries make run",
	"docs/getting-started/try-the-demo.md: git clone https://github.com/caretaker-go/caretaker && cd caretaker":                             "make run is tried further down",
	"docs/getting-started/install.md: sha256sum --check --ignore-missing SHA256SUMS":                                                        "make test-packages makes the sums and checks them",
	"docs/getting-started/install.md: apt-get install ./caretaker_VERSION_amd64.deb":                                                        inDebian,
	"docs/getting-started/install.md: dnf install ./caretaker-VERSION-1.x86_64.rpm":                                                         "make test-packages installs it with rpm",
	"docs/getting-started/install.md: caretaker init --force --config /etc/caretaker/caretaker.yml":                                         inDebian,
	"docs/getting-started/install.md: editor /etc/caretaker/caretaker.env":                                                                  inDebian,
	"docs/getting-started/install.md: apt-get remove caretaker":                                                                             inDebian,
	"docs/getting-started/install.md: tar -xzf caretaker_VERSION_linux_amd64.tar.gz":                                                        "make test-packages unpacks it and asks for its version",
	"docs/getting-started/install.md: docker build -t caretaker:local .":                                                                    "takes a container engine; make test-deploy reads the Dockerfile",
	"docs/guides/kubernetes.md: kubectl apply -k .":                                                                                         "takes a cluster; make test-deploy reads the manifests",
	"docs/guides/convert-a-cascade.md: caretaker lfk adopt --list --config caretaker.yml":                                                   "TestLfkAdopt of cli does so",
	"docs/guides/convert-a-cascade.md: caretaker lfk adopt invoices.customer_id --plan --config caretaker.yml":                              "TestLfkAdopt of cli does so",
	"docs/guides/convert-a-cascade.md: caretaker lfk adopt invoices.customer_id --yes --config caretaker.yml":                               "TestLfkAdopt of cli does so",
	"docs/guides/convert-a-cascade.md: caretaker lfk revert invoices.customer_id --config caretaker.yml":                                    "TestLfkAdopt of cli does so",
	"docs/guides/find-orphans.md: caretaker lfk orphans --config caretaker.yml":                                                             "TestLfkOrphans of cli does so",
	"docs/contributing/faults.md: make faults":                                                                                              "takes ten minutes, and more",
	"docs/contributing/benchmarks.md: make bench":                                                                                           "takes hours",
	"docs/contributing/benchmarks.md: make scale":                                                                                           "measures for half an hour; make bench-once runs it small",
	"docs/contributing/testing.md: make test":                                                                                               "runs all tests",
	"docs/contributing/soak.md: make soak":                                                                                                  "takes hours",
	"docs/concepts/leases-and-fencing.md: WITH guard AS MATERIALIZED (":                                                                     "has placeholders of parameters",
	"docs/clients/README.md: apt-get install python3-grpcio python3-grpc-tools ruby-grpc ruby-grpc-tools protobuf-compiler libprotobuf-dev": "make test-clients installs it",
	"docs/clients/README.md: mkdir -p python ruby":                                                                                          "make test-clients does so",
	"docs/clients/README.md: go run ./docs/clients/go localhost:50051 ca.crt alice.token":                                                   "make test-clients does so", //nolint:gocritic // a command of the page
}

// block is what stands between two fences of a page, or in a comment for the test.
type block struct {
	page string
	line int
	// kind is the first word after the fence: sh, console, sql, yaml, json, text or nothing.
	kind string
	// name is the second word: of the file that a yaml block is, of the database of a sql block.
	name   string
	noTest bool
	lines  []string
}

// step is one command, or a whole script, with the output that the page shows.
type step struct {
	line    int
	command string
	// shown is what the page reports the command prints. Empty means nothing is compared.
	shown string
}

var (
	fence = regexp.MustCompile("^( *)```([a-z]*) *(.*)$")
	// looksLikeCommand finds commands in blocks that are not said to have any.
	looksLikeCommand = regexp.MustCompile(
		`^(\$ |(bin/)?caretaker [a-z]+( |$)|psql |grpcurl |make [a-z]|export |openssl |curl |apt-get |sudo )`)
	heredoc = regexp.MustCompile(`<<-?'?([A-Z]+)'?`)
)

// pages are README.md and all of docs, as paths from the root of the repository.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md"}
	assert.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".md") {
			all = append(all, "docs/"+path)
		}
		return err
	}))
	return all
}

// read returns the text of a page and its blocks.
func read(t *testing.T, page string) (text string, all []block) {
	t.Helper()
	content := assert.Must(os.ReadFile(filepath.Join("..", page)))(t)
	text = string(content)
	var open *block
	indent, end := "", ""
	for i, line := range strings.Split(text, "\n") {
		switch m := fence.FindStringSubmatch(line); {
		case open != nil && strings.TrimSpace(line) == end:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		case line == "<!-- test":
			open, indent, end = &block{page: page, line: i + 1, kind: "sh"}, "", "-->"
		case m != nil:
			open, indent, end = newBlock(m), m[1], "```"
			open.page, open.line = page, i+1
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block does not end", page, open.line)
	}
	return text, all
}

func newBlock(fence []string) *block {
	b := &block{kind: fence[2]}
	for word := range strings.FieldsSeq(fence[3]) {
		if word == "no-test" {
			b.noTest = true
		} else {
			b.name = word
		}
	}
	return b
}

// steps are the commands of a block. The lines of sh are one script, except for background
// commands. In console each begins with "$ ".
func (b block) steps() (all []step) {
	if b.kind == "console" {
		return b.consoleSteps()
	}
	for i, line := range b.lines {
		if i == 0 || goesOn(line) || goesOn(b.lines[i-1]) {
			all = append(all, step{line: b.line + i + 1})
		}
		last := &all[len(all)-1]
		last.command += line + "\n"
	}
	return all
}

func (b block) consoleSteps() (all []step) {
	until := ""
	for i, line := range b.lines {
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case until != "":
			all[len(all)-1].command += "\n" + line
			if line == until {
				until = ""
			}
			continue
		case begins:
			all = append(all, step{line: b.line + i + 1, command: command})
		case len(all) == 0:
			continue
		case strings.HasSuffix(all[len(all)-1].command, `\`):
			all[len(all)-1].command += "\n" + line
			command = line
		default:
			all[len(all)-1].shown += line + "\n"
			continue
		}
		if m := heredoc.FindStringSubmatch(command); m != nil {
			until = m[1]
		}
	}
	return all
}

// first is the first line that reports something, without its comment, by which a block is listed
// in notRun.
func (b block) first() string {
	for _, line := range b.lines {
		if line = strings.TrimSpace(line); line != "" {
			line, _, _ = strings.Cut(strings.TrimPrefix(line, "$ "), " #")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// runs reports whether a page with this block is tried.
func (b block) runs() bool { return !b.noTest && b.kind != "" && b.kind != "text" }

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

func TestBlocks_SayWhatTheyAre(t *testing.T) {
	t.Parallel()
	kinds := []string{"sh", "console", "sql", "yaml", "json", "text", ""}
	found := map[string]bool{}
	for _, page := range pages(t) {
		_, blocks := read(t, page)
		for _, b := range blocks {
			assert.That(t, slices.Contains(kinds, b.kind), "%s: a block of %q: write one of %q", b, b.kind, kinds)
			assert.That(t, b.kind != "console" || len(b.steps()) != 0,
				"%s: a block of console has no line that begins with \"$ \"", b)
			if b.kind == "yaml" && b.name == "" && !b.noTest {
				t.Errorf("%s: a block of yaml has the name of its file, such as ```yaml caretaker.yml", b)
			}
			if b.kind == "" || b.kind == "text" {
				for i, line := range b.lines {
					if looksLikeCommand.MatchString(line) {
						t.Errorf("%s:%d: %q is a command: begin the block with ```sh or ```console",
							b.page, b.line+i+1, line)
					}
				}
			}
			if b.noTest {
				key := b.page + ": " + b.first()
				found[key] = true
				assert.That(t, notRun[key] != "", "%s: no-test without a reason in notRun: %q", b, key)
			}
		}
	}
	for key := range notRun {
		assert.That(t, found[key], "notRun has %q, but there is no such block", key)
	}
}

func TestBlocks_AreReadByTheirParsers(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		_, blocks := read(t, page)
		commands := ""
		for _, b := range blocks {
			content := []byte(strings.Join(b.lines, "\n") + "\n")
			switch b.kind {
			case "yaml", "json":
				file := filepath.Join(t.TempDir(), "caretaker", filepath.Base(cmp.Or(b.name, b.kind)))
				err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600))
				if err := cmp.Or(err, parse(file, content)); err != nil && !b.noTest {
					t.Errorf("%s: %v", b, err)
				}
			case "sh", "console":
				for _, one := range b.steps() {
					commands += one.command + "\n"
				}
			}
		}
		shell := exec.Command("bash", "-n")
		shell.Stdin = strings.NewReader(commands)
		if out, err := shell.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", page, err, out)
		}
	}
}

// A link to a page or a file of the repository, without its anchor.
var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)|(?:src|srcset)="([^":]+)"`)

func TestLinks_LeadToFiles(t *testing.T) {
	for _, page := range append(pages(t), "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md") {
		text, _ := read(t, page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join("..", filepath.Dir(page), m[1]+m[3])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[0])
			}
		}
	}
}

// Texts that differ from run to run count as equal.
var shapes = []struct {
	what *regexp.Regexp
	as   string
}{
	// ids, hashes, cut or whole, who holds a lease, who it was and where
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "#"},
	{regexp.MustCompile(`\b01[0-9a-f]{6}(-[0-9a-f]{1,4})*\b`), "#"},
	{regexp.MustCompile(`\b[0-9a-f]{6,}…|…[0-9a-f]{4}\b`), "#"},
	{regexp.MustCompile(`\b[0-9a-f]{16,}\b`), "#"},
	{regexp.MustCompile(`\b[\w.-]+/\d+/[a-z0-9]{8}\b`), "#"},
	{regexp.MustCompile(`\b\w+@[\w.-]+`), "#"},
	// that a run has started, which a terminal shows in a line that changes
	{regexp.MustCompile(`(?m)^run # of .* started at .*$`), ""},
	{regexp.MustCompile(`(?m)^\(server .* at .*\)$`), ""},
	// times, durations, sizes, numbers
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z| UTC|[+-]\d\d(:\d\d)?)?`), "#"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h|d))+\b`), "#"},
	{regexp.MustCompile(`-?\d+([.,:]\d+)*%?`), "#"},
	// how far a run is, which a terminal shows in a line that changes
	{regexp.MustCompile(`(?m)^(loose_foreign|inactive|ghost|adjourned|placeholder)\w+( on \w+)? # .*$`), ""},
	// nothing yet, and the lines of psql's tables
	{regexp.MustCompile(`(^|\s)-(\s|$)`), "$1#$2"},
	{regexp.MustCompile(`-{2,}`), "--"},
	// one row, two rows
	{regexp.MustCompile(`# ([a-z]+?)s?\b`), "# ${1}"},
}

// words are the words of an output, without what differs from run to run.
func words(text string) []string {
	for _, s := range shapes {
		text = s.what.ReplaceAllString(text, s.as)
		if strings.HasSuffix(s.as, "$2") { // neighbours share a space
			text = s.what.ReplaceAllString(text, s.as)
		}
	}
	return strings.Fields(text)
}

// compare reports where an output begins to differ in shape from what a page shows. "" means
// nowhere. In what is shown "…", or "...", stands for anything: alone for any words, within a word
// for its end.
func compare(shown, got string) string {
	want, have := words(shown), words(got)
	// reached[i] are the places of have up to which the first i words of want may lead.
	at := map[int]bool{0: true}
	furthest := 0
	for _, word := range want {
		next := map[int]bool{}
		for place := range at {
			switch {
			case word == "…" || word == "...":
				for further := place; further <= len(have); further++ {
					next[further] = true
				}
			case place < len(have) && same(word, have[place]):
				next[place+1] = true
			}
		}
		if len(next) == 0 {
			return fmt.Sprintf("shown is %q, but there is %s", word, quote(have, furthest))
		}
		at, furthest = next, len(have)
		for place := range next {
			furthest = min(furthest, place)
		}
	}
	if !at[len(have)] {
		return "there is more: " + quote(have, furthest)
	}
	return ""
}

func same(word, have string) bool {
	before, after, cut := strings.Cut(word, "…")
	if !cut {
		return word == have
	}
	return len(have) >= len(before)+len(after) && strings.HasPrefix(have, before) &&
		strings.HasSuffix(have, after)
}

func quote(have []string, from int) string {
	if from >= len(have) {
		return "nothing"
	}
	return fmt.Sprintf("%q", strings.Join(have[from:min(from+8, len(have))], " "))
}

func TestCompare_SeesShapesAlone(t *testing.T) {
	for _, c := range []struct {
		shown, got string
		same       bool
	}{
		{"100 rows deleted, in 47ms", "9 rows  deleted, in 1m2.5s", true},
		{"100 rows deleted", "100 rows updated", false},
		{"RUN  STATE\n…\nlast 1", "RUN STATE\na b c\nlast 7", true},
		{"RUN  STATE\n…\nlast 1", "RUN STATE\na b c", false},
		{"A  B\n1  -  -", "A  B\n2 3 2026-11-22 10:00:00", true},
		{"A\n1", "A\n1\n2", false},
		{`{"id": "01a1fbb2-60f9-7872-aa81-f1e831a435e2"}`, `{ "id": "01a1fbb2" }`, false},
		{`{"id": "17", "key": 1}`, `{"id":  "18", "key":  2}`, true},
		{`{"id": "17", "key": 1}`, `{"id":  "18", "name":  2}`, false},
		{"digest 80c1f6a9…", "digest 80c1f6a9a7b80c1f6a9a7b80c1f6a9a7b", true},
		{"1 user failed", "2 users failed", true},
		{"ERROR: …", "ERROR: what went wrong", true},
	} {
		if why := compare(c.shown, c.got); (why == "") != c.same {
			t.Errorf("%q and %q: %q", c.shown, c.got, why)
		}
	}
}
