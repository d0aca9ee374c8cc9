package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func TestDockerfile_EndsWithTheProgramAloneAndNoRoot(t *testing.T) {
	file, err := os.Open("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read, err := parser.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Warnings) > 0 {
		t.Error(read.Warnings)
	}
	stages, arguments, err := instructions.Parse(read.AST, nil)
	if err != nil || len(stages) != 2 || len(arguments) != 0 {
		t.Fatalf("%d stages, %v: %v", len(stages), arguments, err)
	}
	version, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(version), "\ngo ")
	if want := "golang:" + strings.Fields(after)[0] + "-bookworm"; stages[0].BaseName != want {
		t.Errorf("built with %s, want go.mod's %s", stages[0].BaseName, want)
	}
	user, entry := "", []string(nil)
	for _, c := range stages[1].Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
		case *instructions.RunCommand:
			t.Errorf("nothing can be run in the last stage: %s", c)
		}
	}
	if stages[1].BaseName != "scratch" || user != "65532:65532" || !slices.Equal(entry, []string{"/caretaker"}) {
		t.Errorf("from %s as %s: %v", stages[1].BaseName, user, entry)
	}
}

func project(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../compose.yaml"}, cli.WithWorkingDirectory("../.."))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompose_HasEverythingAndShowsItToThisMachineAlone(t *testing.T) {
	p := project(t)
	want := []string{"caretaker", "grafana", "jaeger", "migrate", "postgres", "prometheus"}
	if names := p.ServiceNames(); !slices.Equal(slices.Sorted(slices.Values(names)), want) {
		t.Errorf("services %v, want %v", names, want)
	}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s shows %s to %q", name, port.Published, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Image == "" || strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") {
			t.Errorf("%s: the image %q has no version", name, s.Image)
		}
	}
	server := p.Services["caretaker"]
	if !server.ReadOnly || !slices.Equal(server.CapDrop, []string{"ALL"}) || server.Build.Context != root(t) {
		t.Errorf("%+v", server)
	}
	if server.DependsOn["migrate"].Condition != types.ServiceConditionCompletedSuccessfully {
		t.Error("caretaker does not wait for migrate")
	}
	if url := server.Environment["CARETAKER_WEB_TRACE_URL"]; url == nil || !strings.Contains(*url, "{trace_id}") {
		t.Errorf("trace URL %v", url)
	}
}

func root(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
