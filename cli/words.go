package cli

import (
	"regexp"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// asCommands says what the API says of its calls as commands: ResumeWorker is caretaker resume.
func asCommands(text string) string {
	// Some have the command beside them: WatchRun (caretaker watch ID).
	text = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z][A-Za-z]+(?: \*)? \((caretaker [^()]+)\)`).ReplaceAllString(text, "$1")
	names := map[string]string{
		"RunBatch": "run", "GetStatus": "status", "ListLeases": "leases", "GetRun": "watch", "ListRuns": "runs", "WatchRun": "watch",
		"CancelRun": "cancel", "PauseWorker": "pause", "ResumeWorker": "resume", "ListJobs": "jobs", "RetryJob": "jobs retry",
		"ListFires": "fires", "SetFeatureFlag": "flags set", "ListFeatureFlags": "flags",
	}
	return regexp.MustCompile(`\b[A-Z][a-z]+[A-Z][A-Za-z]+\b`).ReplaceAllStringFunc(text, func(call string) string {
		if command, known := names[call]; known {
			return "caretaker " + command
		}
		return call
	})
}

// asFlags says what the API says of a field as what the command calls it.
func asFlags(violation *errdetails.BadRequest_FieldViolation) string {
	names := map[string]string{
		"ttl": "--for", "page_size": "--page-size", "page_token": "--page-token", "database": "--database", "reason": "--reason",
		"kind": "--kind", "state": "--state", "outcome": "--outcome", "worker": "WORKER", "id": "id", "name": "NAME",
	}
	name, known := names[violation.GetField()]
	if !known {
		name = violation.GetField()
	}
	return name + ": " + asCommands(violation.GetDescription())
}
