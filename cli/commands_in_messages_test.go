package cli

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestExplain_CallsAreCommandsAndNoneIsSaidTwice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"run 7 is at work, WatchRun (caretaker watch 7) follows it":  "run 7 is at work, caretaker watch 7 follows it",
		"end the pause with ResumeWorker * (caretaker resume --all)": "end the pause with caretaker resume --all",
		"end the pause with ResumeWorker":                            "end the pause with caretaker resume",
		"WatchRun follows it, CancelRun stops it":                    "caretaker watch follows it, caretaker cancel stops it",
	} {
		assert.Equal(t, asCommands(text), want)
	}
}
