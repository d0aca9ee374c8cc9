package commandline

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParse_SaysWhatIsWrongInOneLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-time", "0"}, "-time is 0s: it must be above 0"},
		{[]string{"-time", "long"}, `invalid value "long" for flag -time: parse error: see -help`},
		{[]string{"-bound", "-1"}, "-bound is -1: it must be above 0"},
		{[]string{"-burst", "0"}, "-burst is 0: it must be above 0"},
		{[]string{"-size", "51"}, "-size is 51: it must be 1 to 50"},
		{[]string{"-size", "0"}, "-size is 0: it must be 1 to 50"},
		{[]string{"-wind"}, "flag provided but not defined: -wind: see -help"},
		{[]string{"right", "now"}, `there are no arguments, but got "right now": see -help`},
		{[]string{"-size", "50", "-time", "1s", "-bound", "0.1"}, ""},
	} {
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		flags.Duration("time", time.Second, "")
		flags.Float64("bound", 1, "")
		flags.Int("burst", 1, "")
		flags.Int("size", 1, "")
		err := Parse(flags, c.args, io.Discard)
		if err == nil {
			err = errors.Join(Positive(flags, "time", "bound", "burst"), Within(flags, "size", 1, 50))
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
}

func TestParse_PrintsTheOptionsIfAsked(t *testing.T) {
	t.Parallel()
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Int("size", 1, "how large it is")
	var help strings.Builder
	if err := Parse(flags, []string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "how large it is") {
		t.Errorf("%v: %q", err, help.String())
	}
}
