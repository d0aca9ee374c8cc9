//go:build chromium

package web

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// browser is a headless Chromium, driven by chromedriver over the WebDriver protocol.
type browser struct {
	t       *testing.T
	session string
	client  *http.Client
}

// browse starts a browser of its own, without anything of another one.
func browse(t *testing.T, extra ...string) *browser {
	t.Helper()
	driver, err := exec.LookPath("chromedriver")
	assert.Require(t, err == nil, "chromedriver is missing: tools/require.sh chromium installs it (%v)", err)
	listener := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	_ = listener.Close()
	_, port, _ := strings.Cut(address, ":")
	process := exec.Command(driver, "--port="+port)
	assert.NoError(t, process.Start())
	b := &browser{t: t, session: "http://" + address, client: &http.Client{Transport: &http.Transport{}, Timeout: devdb.WaitTimeout}}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		_ = process.Process.Signal(os.Interrupt)
		_ = process.Wait()
	})
	b.eventually("chromedriver answers", func() bool { return b.try(http.MethodGet, "/status", nil, nil) == nil })
	folder := assert.Must(os.MkdirTemp("", "caretaker-chromium-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	arguments := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + folder,
	}, extra...)
	var made struct{ SessionID string }
	b.ask("/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"goog:chromeOptions": map[string]any{"args": arguments}, "goog:loggingPrefs": map[string]any{"browser": "ALL"},
	}}}, &made)
	b.session += "/session/" + made.SessionID
	t.Cleanup(func() { _ = b.try(http.MethodDelete, "", nil, nil) })
	return b
}

// try sends a command and reads the value of its answer.
func (b *browser) try(method, path string, body, into any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(context.Background(), method, b.session+path, content)
	if err != nil {
		return err
	}
	answer, err := b.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, &struct{ Value any }{into})
}

func (b *browser) ask(path string, body, into any) {
	b.t.Helper()
	assert.NoError(b.t, b.try(http.MethodPost, path, body, into))
}

// open loads a page.
func (b *browser) open(url string) {
	b.t.Helper()
	b.ask("/url", map[string]any{"url": url}, nil)
}

// script runs JavaScript, the body of a function, and returns what it returns.
func script[T any](b *browser, code string) (out T) {
	b.t.Helper()
	b.ask("/execute/sync", map[string]any{"script": code, "args": []any{}}, &out)
	return out
}

// command is one of the DevTools protocol.
func (b *browser) command(name string, parameters map[string]any, into any) {
	b.t.Helper()
	b.ask("/goog/cdp/execute", map[string]any{"cmd": name, "params": parameters}, into)
}

// html is the document as it stands, read without JavaScript. It is read again if the browser loads
// the page again between the two commands, which makes the node's id unknown.
func (b *browser) html() string {
	b.t.Helper()
	var outer struct{ OuterHTML string }
	b.eventually("the document is read", func() bool {
		var root struct{ Root struct{ NodeID int } }
		b.command("DOM.getDocument", map[string]any{}, &root)
		err := b.try(http.MethodPost, "/goog/cdp/execute", map[string]any{
			"cmd": "DOM.getOuterHTML", "params": map[string]any{"nodeId": root.Root.NodeID},
		}, &outer)
		if err != nil && !strings.Contains(err.Error(), "Could not find node") {
			b.t.Fatal(err)
		}
		return err == nil
	})
	return outer.OuterHTML
}

// size makes the window so large, in CSS pixels.
func (b *browser) size(width, height int) {
	b.t.Helper()
	b.command("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
}

// scheme is dark or light.
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.command("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// picture is a PNG of the window.
func (b *browser) picture() []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.command("Page.captureScreenshot", map[string]any{"optimizeForSpeed": false}, &shot)
	return assert.Must(base64.StdEncoding.DecodeString(shot.Data))(b.t)
}

// small is a picture with its 256 most frequent colours, each other one being the nearest of them.
func small(t *testing.T, content []byte) []byte {
	t.Helper()
	picture := assert.Must(png.Decode(bytes.NewReader(content)))(t)
	bounds, often := picture.Bounds(), map[color.Color]int{}
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			often[picture.At(x, y)]++
		}
	}
	palette := slices.SortedFunc(maps.Keys(often), func(a, b color.Color) int { return often[b] - often[a] })
	reduced := image.NewPaletted(bounds, palette[:min(len(palette), 256)])
	draw.Draw(reduced, bounds, picture, image.Point{}, draw.Src)
	var out bytes.Buffer
	assert.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced))
	return out.Bytes()
}

// complaints are what the browser has to say of the page: errors of scripts, violations of the policy.
func (b *browser) complaints() (found []string) {
	b.t.Helper()
	var entries []struct{ Level, Message string }
	b.ask("/se/log", map[string]any{"type": "browser"}, &entries)
	for _, e := range entries {
		if e.Level == "SEVERE" || strings.Contains(e.Message, "Content Security Policy") {
			found = append(found, e.Message)
		}
	}
	return found
}

func (b *browser) eventually(what string, holds func() bool) {
	b.t.Helper()
	devdb.Eventually(b.t, what, holds)
}
