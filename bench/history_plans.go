package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// slow is how long a statement takes whose plan -plans shows.
const slow = 20 * time.Millisecond

// explainSlow lets the server log the plans of slow statements on connections to come.
func (d *database) explainSlow(ctx context.Context) error {
	for _, setting := range []string{
		"session_preload_libraries = 'auto_explain'",
		fmt.Sprintf("auto_explain.log_min_duration = %d", slow.Milliseconds()),
		"auto_explain.log_analyze = on", "auto_explain.log_buffers = on", "auto_explain.log_timing = off",
	} {
		if err := d.exec(ctx, `ALTER DATABASE `+d.name+` SET `+setting); err != nil {
			return err
		}
	}
	return nil
}

// noteSlow notes the slow statements that the log shows, each text once, with its plan.
func noteSlow(r *report, log io.Reader) error {
	text, err := io.ReadAll(log)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	entry := regexp.MustCompile(`duration: ([0-9.]+ ms)  plan:\n((?:\t.*\n)+)`)
	for _, found := range entry.FindAllStringSubmatch(string(text), -1) {
		query, _, _ := strings.Cut(found[2], "(cost=")
		if !seen[query] {
			seen[query] = true
			r.note("A statement of %s:\n\n```\n%s```", found[1], found[2])
		}
	}
	if len(seen) == 0 {
		r.note("No statement took longer than %s.", slow)
	}
	return nil
}
