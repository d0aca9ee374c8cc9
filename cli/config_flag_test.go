package cli_test

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/cli"
)

// Every command is called as in its examples, with a file that does not exist, and one with a key that does not.
func TestConfig_AWrongFileIsAnErrorOfEveryCommand(t *testing.T) {
	sh, wrong := examples(t), saved(t, "wrong.yml", "listn: 127.0.0.1:50051")
	tried := 0
	everyCommand(cli.Root(cli.Streams{}), func(c *cobra.Command) {
		// init writes the file of --config.
		if c.Name() == "init" || !c.Runnable() || c.HasSubCommands() && c.Name() != "jobs" && c.Name() != "flags" || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		line, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		line, _, _ = strings.Cut(line, " >")
		line = strings.ReplaceAll(line, " --config caretaker.yml", "")
		for file, mistake := range map[string]string{"/nowhere.yml": "/nowhere.yml", wrong: "did you mean listen?"} {
			tried++
			code, out, errOut := sh.caretaker(append(words(line)[1:], "--config", file)...)
			if code != 1 && c.Name() != "doctor" || code == 0 || !strings.Contains(out+errOut, mistake) {
				t.Errorf("%s --config %s: exit %d: %s%s", line, file, code, out, errOut)
			}
		}
	})
	if tried < 60 {
		t.Errorf("only %d were tried", tried)
	}
}
