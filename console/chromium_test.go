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

// A chromium is a headless Chromium that tests drive by the DevTools protocol, over pipes.
type chromium struct {
	cmd      *exec.Cmd
	to, from *os.File
	profile  string
	reading  sync.WaitGroup

	mu      sync.Mutex
	next    int
	waiting map[int]chan json.RawMessage
	pages   map[string]*browser // by session
}

// A browser is one page of a Chromium. It has its own cookies, storage and cache.
type browser struct {
	*chromium

	t             *testing.T
	session       string
	width, height int
	faults        []string // errors in the page's console, and exceptions; guarded by mu
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

// shared is the Chromium of all tests, or nil. A test that fails ends it, so that no later test
// meets its state.
var shared *chromium

// startChromium starts a Chromium, which stopChromium ends.
func startChromium(t *testing.T, path string) *chromium {
	t.Helper()
	profile, err := os.MkdirTemp("", "chromium") //nolint:usetesting // it outlives the test
	must(t, err)
	fromTest, to, err := os.Pipe()
	must(t, err)
	from, fromBrowser, err := os.Pipe()
	must(t, err)
	// In a window that fills the screen, Chromium does not draw its own bars.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars", "--window-size=1280,720", "--start-fullscreen", "--disable-features=SpareRendererForSitePerProcess", "--remote-debugging-pipe", "--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{fromTest, fromBrowser} // 3 and 4
	cmd.WaitDelay = 5 * time.Second
	realserver.EndWithParent(cmd)
	must(t, cmd.Start())
	fromTest.Close()
	fromBrowser.Close()
	c := &chromium{cmd: cmd, to: to, from: from, profile: profile, waiting: make(map[int]chan json.RawMessage), pages: make(map[string]*browser)}
	c.reading.Go(c.read)
	return c
}

// stopChromium ends the Chromium of all tests, if there is one.
func stopChromium() {
	c := shared
	if c == nil {
		return
	}
	shared = nil
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // it is killed
	c.to.Close()
	c.from.Close()
	c.reading.Wait()
	_ = os.RemoveAll(c.profile) // its other processes may still write to it for a moment
}

// newBrowser opens a page of 1280 × 720, which the test closes.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := realserver.Chromium(t)
	if shared == nil {
		shared = startChromium(t, path)
	}
	b := &browser{chromium: shared, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			stopChromium()
		}
	})
	var profile struct{ BrowserContextID string }
	b.do("Target.createBrowserContext", nil, &profile)
	inProfile := map[string]any{"browserContextId": profile.BrowserContextID}
	t.Cleanup(func() {
		b.mu.Lock()
		delete(b.pages, b.session)
		b.session = ""
		b.mu.Unlock()
		_, _ = b.send("", "Target.disposeBrowserContext", inProfile) // a Chromium that has failed is stopped
	})
	var page struct{ TargetID string }
	b.do("Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": profile.BrowserContextID, "newWindow": true, "windowState": "fullscreen"}, &page)
	var attached struct{ SessionID string }
	b.do("Target.attachToTarget", map[string]any{"targetId": page.TargetID, "flatten": true}, &attached)
	b.mu.Lock()
	b.session = attached.SessionID
	b.pages[b.session] = b
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.do(domain+".enable", nil, nil)
	}
	b.resize(1280, 720)
	return b
}

// read reads what Chromium sends, until the pipe is closed.
func (c *chromium) read() {
	in := bufio.NewReader(c.from)
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
		c.mu.Lock()
		if waiting := c.waiting[m.ID]; m.ID != 0 && waiting != nil {
			delete(c.waiting, m.ID)
			if m.Error != nil {
				m.Result = json.RawMessage(fmt.Sprintf(`{"failed":%q}`, m.Error.Message))
			}
			waiting <- m.Result
		}
		if page := c.pages[m.SessionID]; page != nil {
			if fault := faultOf(m.Method, string(m.Params)); fault != "" {
				page.faults = append(page.faults, fault)
			}
		}
		c.mu.Unlock()
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

// send sends a command to a session, or to the Chromium if that is empty. The channel gets the
// result.
func (c *chromium) send(session, method string, params any) (<-chan json.RawMessage, error) {
	got := make(chan json.RawMessage, 1)
	c.mu.Lock()
	c.next++
	id := c.next
	c.waiting[id] = got
	c.mu.Unlock()
	line, err := json.Marshal(message{ID: id, Method: method, Params: params, SessionID: session})
	if err != nil {
		return nil, err
	}
	_, err = c.to.Write(append(line, 0))
	return got, err
}

// do sends a command and waits for its result.
func (b *browser) do(method string, params, result any) {
	b.t.Helper()
	got, err := b.send(b.session, method, params)
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
	b.await(fmt.Sprintf("the page does not show %q", want), fmt.Sprintf("document.body?.innerText.includes(%q)", want))
}

// until waits until an expression is true in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	b.await("it is not true: "+expression, expression)
}

// awaited is a function in JavaScript that calls the function value until that returns something
// true, and returns it. After 2 s it returns null. It looks every 50 ms whether the document has
// changed, and calls value if it has. It calls value every 250 ms even if it has not.
const awaited = `async (value) => {
	let changed = true;
	const observer = new MutationObserver(() => (changed = true));
	observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
	try {
		for (let i = 0; i < 40; i++, await new Promise((done) => setTimeout(done, 50))) {
			const got = (changed || i % 5 === 0) && value();
			if (got) return got;
			changed &&= observer.takeRecords().length > 0;
		}
	} finally {
		observer.disconnect();
	}
	return null;
}`

// await waits until an expression of the page has a value that is true, and returns it as JSON.
// Between two documents there is no value. The page does the waiting, because each value may need
// the layout of the page.
func (b *browser) await(failed, expression string) string {
	b.t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		if got := b.eval(fmt.Sprintf("(%s)(() => (%s))", awaited, expression)); got != "null" && got != "" {
			return got
		}
		select {
		case <-tick.C:
		case <-limit.C:
			b.shoot("failed")
			b.t.Fatalf("%s within 30 s, but\n%s", failed, b.text())
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
	var text string
	must(b.t, json.Unmarshal([]byte(b.await(where+" has not loaded", `(text => !/Loading …|正在加载/.test(text) && text)(document.body?.innerText ?? "")`)), &text))
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
