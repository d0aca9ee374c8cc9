//go:build chromium

package web

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/job"
)

// violationsOf runs axe-core, whose source precedes it, and returns what violates WCAG 2.2 AA.
const violationsOf = `; return axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}).then(found =>
	found.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target + ": " + n.failureSummary)))`

func TestChromium_NoPageViolatesWCAG(t *testing.T) {
	path := assert.Must(exec.Command("../tools/axe.sh").Output())(t)
	axe := string(assert.Must(os.ReadFile(strings.TrimSpace(string(path))))(t))
	f := start(t, func(c *Config) { c.Actions = true })
	f.busy()
	f.slow()
	dry := f.run(tokens, true)
	jobs := assert.Must(f.service.Jobs(t.Context(), job.Filter{State: "discarded", Limit: 1}))(t)
	user, group, _ := f.one()
	b := browse(t)
	pages := []string{
		"/", "/workers/" + tokens, "/workers/" + keys, "/workers/adjourned_group_deletion/dead", "/runs/" + atWork, "/runs/" + dry.ID,
		fmt.Sprint("/jobs/", jobs[0].ID), fmt.Sprintf("/plan/user/%d", user), fmt.Sprintf("/plan/group/%d", group),
		"/act/pause?worker=" + tokens, "/signin", "/nothing",
	}
	b.size(1280, 900)
	b.open(f.url)
	for _, link := range script[[]string](b, `return [...document.querySelectorAll("#bar a")].map(a => a.getAttribute("href"))`) {
		if !slices.Contains(pages, link) {
			pages = append(pages, link)
		}
	}
	for _, look := range []struct {
		scheme string
		width  int
	}{{"light", 1280}, {"dark", 1280}, {"dark", 390}} {
		b.scheme(look.scheme)
		b.size(look.width, 900)
		for _, page := range pages {
			b.open(f.url + page)
			script[any](b, `document.querySelectorAll("details").forEach(d => d.open = true)`)
			for _, violation := range script[[]string](b, axe+violationsOf) {
				t.Errorf("%s, %s, %d pixels: %s", page, look.scheme, look.width, violation)
			}
		}
	}
}

func TestChromium_ProgressComesWithoutReloading(t *testing.T) {
	f := start(t)
	f.slow()
	b := browse(t)
	for _, path := range []string{"/runs/" + atWork, "/"} {
		b.open(f.url + path + "?refresh=off")
		b.open(f.url + path)
		script[any](b, `window.mark = 1; document.body.dataset.refresh = "" `)
		f.exec(`UPDATE maintenance.runs SET tables = jsonb_set(tables, '{0,updated}', to_jsonb((tables -> 0 ->> 'updated')::bigint + 1000)) WHERE id = $1`, atWork)
		want := "13,345"
		if path == "/" {
			want = "14,345"
		}
		b.eventually("the rows are shown", func() bool {
			return script[bool](b, `return window.mark === 1 && document.querySelector("[data-events]").innerText.includes("`+want+`")`)
		})
	}
	f.finish()
	b.eventually("the end is shown", func() bool {
		return script[bool](b, `return window.mark === 1 && !document.querySelector("[data-events]")`)
	})
	found := b.complaints()
	assert.That(t, len(found) == 0, "the browser complains: %v", found)
}

func TestChromium_RefreshKeepsOpenDetailsAndWhatIsTyped(t *testing.T) {
	f := start(t)
	b := browse(t)
	b.open(f.url)
	script[any](b, `document.querySelector("#rows-values").open = true; document.querySelector("#rows-values summary").focus(); window.old = document.querySelector("#rows")`)
	replaced := func() bool { return script[bool](b, `return document.querySelector("#rows") !== window.old`) }
	b.eventually("the content is replaced", replaced)
	assert.That(t, script[bool](b, `return document.querySelector("#rows-values").open && document.activeElement.parentElement.id === "rows-values"`), "the details are closed, or without the focus")
	script[any](b, `const i = document.createElement("input"); i.id = "typed"; document.getElementById("content").prepend(i); i.focus(); i.value = "so far";
		window.old = document.querySelector("#rows"); window.asked = performance.getEntriesByType("resource").length`)
	// The loop asks for nothing while a field has the focus.
	script[any](b, `return new Promise(done => setTimeout(done, 6000))`)
	assert.That(t, script[bool](b, `return document.getElementById("typed").value === "so far" && document.activeElement.id === "typed"`), "the field is gone")
	script[any](b, `document.activeElement.blur()`)
	b.eventually("the content is replaced again", replaced)
}

func TestChromium_ShowsLocalTimesByKeyboard(t *testing.T) {
	f := start(t)
	f.run(tokens, false)
	b := browse(t)
	b.command("Emulation.setTimezoneOverride", map[string]any{"timezoneId": "Asia/Kolkata"}, nil)
	b.open(f.url + "/workers/" + tokens)
	utc := script[string](b, `return document.querySelector(".facts time").innerText`)
	assert.That(t, strings.HasSuffix(utc, " UTC"), "got %q", utc)
	// Tab reaches every link and button. Enter presses this one.
	press := func(key string, code int) {
		for _, kind := range []string{"rawKeyDown", "char", "keyUp"} {
			text := map[bool]string{true: "\r", false: ""}[key == "Enter"]
			if kind == "char" && text == "" {
				continue
			}
			b.command("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}, nil)
		}
	}
	reached := false
	for range 30 {
		press("Tab", 9)
		if reached = script[bool](b, `return document.activeElement.id === "zone" && document.activeElement.matches(":focus-visible")`); reached {
			break
		}
	}
	assert.That(t, reached, "Tab does not reach the switch")
	press("Enter", 13)
	b.eventually("local times", func() bool {
		return strings.HasSuffix(script[string](b, `return document.querySelector(".facts time").innerText`), " UTC+05:30")
	})
	b.open(f.url + "/")
	assert.That(t, script[bool](b, `return document.querySelector("#asof time").innerText.endsWith(" UTC+05:30") && document.getElementById("zone").innerText === "show UTC"`), "the choice is not kept")
	assert.That(t, strings.HasSuffix(script[string](b, `return document.querySelector("td time").title`), " UTC+05:30"), "titles are in UTC")
	charts := script[string](b, `return document.querySelector("#rows ~ table .bars title").textContent + " | " + document.querySelector("#rows-values .zone").textContent`)
	assert.That(t, regexp.MustCompile(`^\d\d:30 to \d\d:30: .* \| local time, UTC\+05:30$`).MatchString(charts), "got %q", charts)
	// A field shows and takes local times. The address is in UTC.
	b.open(f.url + "/runs?since=2026-11-01%2015:04")
	assert.Equal(t, script[string](b, `const f = document.getElementById("f-since"); return f.value + " | " + document.getElementById("h-since").textContent`),
		"2026-11-01 20:34 | 24h, 7d, or 2026-11-01 15:04 in local time")
	script[any](b, `document.getElementById("f-until").value = "2026-11-02 05:30"; document.querySelector("form.search[action='/runs']").requestSubmit()`)
	b.eventually("the address in UTC", func() bool {
		address := script[string](b, `return decodeURIComponent(location.search)`)
		return strings.Contains(address, "since=2026-11-01T15:04:00.000Z") && strings.Contains(address, "until=2026-11-02T00:00:00.000Z")
	})
	b.eventually("the field in local time", func() bool {
		return script[string](b, `return document.getElementById("f-until")?.value ?? ""`) == "2026-11-02 05:30"
	})
	script[any](b, `document.getElementById("zone").click()`)
	assert.Equal(t, script[string](b, `return document.getElementById("f-until").value`), "2026-11-02T00:00:00Z")
}
