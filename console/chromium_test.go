// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// A browser is a headless Chromium that a test drives by the DevTools protocol, over pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan json.RawMessage
	faults  []string // errors in the page's console, and exceptions
}

// message is a message of the DevTools protocol.
type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params any             `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
}

// newBrowser starts a browser with one page of 1280 × 720, which the test ends.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := realserver.Chromium(t)
	profile, err := os.MkdirTemp("", "chromium") //nolint:usetesting // processes of the browser may still write to it for a moment
	must(t, err)
	fromTest, to, err := os.Pipe()
	must(t, err)
	from, fromBrowser, err := os.Pipe()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars", "--window-size=1280,720", "--remote-debugging-pipe", "--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{fromTest, fromBrowser} // 3 and 4
	cmd.WaitDelay = 5 * time.Second
	realserver.EndWithParent(cmd)
	must(t, cmd.Start())
	fromTest.Close()
	fromBrowser.Close()
	b := &browser{t: t, to: to, waiting: make(map[int]chan json.RawMessage)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it is killed
		to.Close()
		from.Close()
		reading.Wait()
		_ = os.RemoveAll(profile)
	})
	var targets struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	eventually(t, "the browser has a page", func() bool {
		b.do("Target.getTargets", nil, &targets)
		for _, target := range targets.TargetInfos {
			if target.Type == "page" {
				var attached struct{ SessionID string }
				b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
				b.session = attached.SessionID
			}
		}
		return b.session != ""
	})
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.do(domain+".enable", nil, nil)
	}
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": false}, nil)
	return b
}

// read reads what the browser sends, until the pipe is closed.
func (b *browser) read(from *os.File) {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if waiting := b.waiting[m.ID]; m.ID != 0 && waiting != nil {
			delete(b.waiting, m.ID)
			if m.Error != nil {
				m.Result = json.RawMessage(fmt.Sprintf(`{"failed":%q}`, m.Error.Message))
			}
			waiting <- m.Result
		}
		if fault := faultOf(m.Method, string(m.Params)); fault != "" {
			b.faults = append(b.faults, fault)
		}
		b.mu.Unlock()
	}
}

// faultOf returns what is wrong with a page, according to an event, or "".
func faultOf(event, params string) string {
	switch {
	case event == "Runtime.exceptionThrown",
		event == "Runtime.consoleAPICalled" && strings.Contains(params, `"type":"error"`),
		event == "Log.entryAdded" && strings.Contains(params, `"level":"error"`):
		return event + " " + params
	}
	return ""
}

// do sends a command and waits for its result.
func (b *browser) do(method string, params, result any) {
	b.t.Helper()
	got := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = got
	session := b.session
	b.mu.Unlock()
	line, err := json.Marshal(message{ID: id, Method: method, Params: params, SessionID: session})
	must(b.t, err)
	_, err = b.to.Write(append(line, 0))
	must(b.t, err)
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	select {
	case raw := <-got:
		if result != nil {
			must(b.t, json.Unmarshal(raw, result))
		}
	case <-ctx.Done():
		b.t.Fatalf("%s: no answer of the browser", method)
	}
}

// eval evaluates an expression in the page, and returns its value as JSON.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var out struct {
		Result struct {
			Value json.RawMessage
		}
		ExceptionDetails json.RawMessage
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	return string(out.Result.Value)
}

// text returns the text of the page.
func (b *browser) text() string {
	b.t.Helper()
	var s string
	must(b.t, json.Unmarshal([]byte(b.eval("document.body?.innerText ?? ''")), &s))
	return s
}

// open opens an address and waits until the page shows a text.
func (b *browser) open(url, want string) {
	b.t.Helper()
	b.do("Page.navigate", map[string]any{"url": url}, nil)
	b.waitFor(want)
}

// waitFor waits until the page shows a text.
func (b *browser) waitFor(want string) {
	b.t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		// While another page is loaded, there is no value.
		if b.eval(fmt.Sprintf("!!document.body && document.body.innerText.includes(%q)", want)) == "true" {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			b.shoot("failed")
			b.t.Fatalf("the page does not show %q within 30 s, but\n%s", want, b.text())
		}
	}
}

// codes are the keys that have no character.
var codes = map[string]int{"Enter": 13, "Tab": 9, "Escape": 27}

// press presses keys, one after the other.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
		switch {
		case key == "Enter":
			down["text"] = "\r"
		case codes[key] == 0:
			down["text"] = key
		}
		b.do("Input.dispatchKeyEvent", down, nil)
		b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
	}
}

// write types a text.
func (b *browser) write(text string) {
	b.t.Helper()
	for _, c := range text {
		b.press(string(c))
	}
}

// tabTo presses Tab until the focused element matches a selector.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 200 {
		if b.eval(fmt.Sprintf("document.activeElement.matches(%q)", selector)) == "true" {
			return
		}
		b.press("Tab")
	}
	b.shoot("failed")
	b.t.Fatalf("Tab does not reach %s", selector)
}

// check fails the test if the page has an error, a NaN, or waits for ever.
func (b *browser) check(where string) {
	b.t.Helper()
	eventually(b.t, where+" has loaded", func() bool {
		return !strings.Contains(b.text(), "Loading …") && !strings.Contains(b.text(), "正在加载")
	})
	text := b.text()
	for _, bad := range []string{"NaN", "undefined", "Infinity", "[object", "null"} {
		if strings.Contains(text, bad) {
			b.t.Errorf("%s: the page shows %q:\n%s", where, bad, text)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		b.t.Errorf("%s: %.600s", where, fault)
	}
	b.faults = nil
}

// shoot writes a picture of the page into the folder YODEL_SHOTS, if that is set.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if folder := os.Getenv("YODEL_SHOTS"); folder != "" {
		b.picture(folder+"/"+name+".png", 720)
	}
}

// picture writes a picture of the upper part of the page into a file.
func (b *browser) picture(path string, height int) {
	b.t.Helper()
	b.pictureOf(path, 1280, height)
}

func (b *browser) pictureOf(path string, width, height int) {
	b.t.Helper()
	var shot struct{ Data string }
	b.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}, &shot)
	picture, err := base64.StdEncoding.DecodeString(shot.Data)
	must(b.t, err)
	must(b.t, os.WriteFile(path, picture, 0o644))
}
