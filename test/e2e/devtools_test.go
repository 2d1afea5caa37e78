package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// devtools drives a headless Chromium (BROWSER) through its DevTools protocol, over two pipes.
type devtools struct {
	t       *testing.T
	ctx     context.Context
	to      *os.File
	session string

	mu       sync.Mutex
	last     int
	waiting  map[int]chan devtoolsMessage
	problems []string // exceptions, and errors in the log, such as violations of the page's policy
}

type devtoolsMessage struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// startDevtools starts a browser with an empty page.
func startDevtools(t *testing.T) *devtools {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, os.Getenv("BROWSER"), "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run", "--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{in, out}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	b := &devtools{t: t, ctx: ctx, to: to, waiting: map[int]chan devtoolsMessage{}}
	go b.read(from)
	t.Cleanup(func() {
		b.call("Browser.close", nil, nil)
		_ = cmd.Wait() // it may be ended by the pipe, too
		cancel()
		to.Close()
		from.Close()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

func (b *devtools) read(from *os.File) {
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m devtoolsMessage
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0 && b.waiting[m.ID] != nil:
			b.waiting[m.ID] <- m
			delete(b.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded":
			b.problems = append(b.problems, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call sends a command and reads its result.
func (b *devtools) call(method string, params map[string]any, into any) {
	b.t.Helper()
	answer := make(chan devtoolsMessage, 1)
	b.mu.Lock()
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	b.waiting[b.last] = answer
	b.mu.Unlock()
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	if method == "Browser.close" {
		return // the browser may end before it answers
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error)
		}
		if into != nil {
			if err := json.Unmarshal(m.Result, into); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-b.ctx.Done():
		b.t.Fatalf("%s: no answer", method)
	}
}

// eval returns the value of an expression, as text.
func (b *devtools) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return fmt.Sprint(r.Result.Value)
}

// until waits until an expression is true; it is computed for each frame.
func (b *devtools) until(what, expression string) {
	b.t.Helper()
	timeout := patience.Milliseconds()
	got := b.eval(fmt.Sprintf(`new Promise((done) => { const end = Date.now() + %d; const look = () => {
		if (%s) done(true); else if (Date.now() > end) done(false); else requestAnimationFrame(look); }; look(); })`,
		timeout, expression))
	if got != "true" {
		b.t.Fatalf("never: %s: %s\n%s", what, expression, b.eval("document.body.innerText"))
	}
}

// key presses and releases a key.
func (b *devtools) key(name string) {
	b.t.Helper()
	for _, what := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": what, "key": name}
		if name == "Enter" && what == "keyDown" {
			params["text"] = "\r"
		}
		b.call("Input.dispatchKeyEvent", params, nil)
	}
}

// look sets the size and the theme of the page.
func (b *devtools) look(width, height int, theme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": theme}}}, nil)
}

// picture takes a picture of the page into PICTURES, if that is set.
func (b *devtools) picture(name string) {
	b.t.Helper()
	var r struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	image, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil || len(image) < 10_000 {
		b.t.Fatalf("the picture %s: %d bytes, %v", name, len(image), err)
	}
	if dir := os.Getenv("PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), image, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}
