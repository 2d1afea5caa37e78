package e2e

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// waiting are pods that wait for different things, an event with hostile text about one of them, and a model server.
const waiting = `
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec: {containers: [{name: c, image: carob.local/demo:1, resources: {requests: {cpu: "5000"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec: {containers: [{name: c, image: "carob.local/absent:1", imagePullPolicy: Never}]}
---
apiVersion: v1
kind: Pod
metadata: {name: works}
spec: {containers: [{name: c, image: carob.local/demo:1, imagePullPolicy: IfNotPresent}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: models}
spec: {gatewayClassName: carob, listeners: [{name: http, port: 8080, protocol: HTTP}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llama}
spec:
  parentRefs: [{name: models}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: llama}}
spec:
  containers:
  - name: server
    image: localhost/modelserver:1
    ports: [{containerPort: 8000, hostPort: 28123, hostIP: 127.77.9.7}]
    readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
`

const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

// TestDashboardInBrowser shows a cluster in a browser (BROWSER=chromium): why pods wait, live; the queue of a model
// server; hostile texts as texts; keys, filters, both themes, a narrow window; and a restart of carob. PICTURES is
// where its pictures are left.
func TestDashboardInBrowser(t *testing.T) {
	if os.Getenv("BROWSER") == "" {
		t.Skip("BROWSER names no browser")
	}
	c := startCluster(t, "--gateway-http", "127.77.9.7:8080")
	c.carob(t, "image", "import", filepath.Join(os.Getenv("IMAGES"), "modelserver.tar"))
	c.carob(t, "image", "import", filepath.Join(os.Getenv("IMAGES"), "demo.tar"))
	c.acceptGateways(t)
	c.carob(t, "addon", "enable", "inference")
	b := startDevtools(t)
	b.look(1280, 800, "light")
	b.call("Page.navigate", map[string]any{"url": dashboard(t, c)}, nil)
	b.until("an empty cluster", `document.querySelector('#empty')?.innerText.includes('carob demo')`)
	if hash := b.eval("location.hash"); hash != "#/pods" {
		t.Errorf("the address keeps %s", hash)
	}
	c.kubectlIn(t, waiting, "apply", "-f", "-")
	b.until("what the pods wait for", `document.querySelectorAll('#rows .bad').length == 2 &&
		document.querySelector('#rows').innerText.includes('1 Insufficient cpu') &&
		document.querySelector('#rows').innerText.includes('carob.local/absent:1')`)
	b.until("the pod that works is ready, with its stages", `[...document.querySelectorAll('#rows .ok')].some((r) =>
		r.innerText.includes('works') && r.querySelector('.stage-ready') && r.querySelector('.stage-create'))`)
	if first := b.eval(`document.querySelector('#rows .row').className`); !strings.Contains(first, "bad") {
		t.Errorf("the first row is %s", first)
	}

	uid := c.kubectl(t, "get", "pod/huge", "-o", "jsonpath={.metadata.uid}")
	c.kubectlIn(t, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"hostile"},"type":"Warning","reason":"Odd",`+
		`"message":"`+strings.ReplaceAll(hostile, `"`, `\"`)+`\u202e\u001b[31m","lastTimestamp":"2100-01-01T00:00:00Z",`+
		`"involvedObject":{"kind":"Pod","namespace":"default","name":"huge","uid":"`+uid+`"}}`, "apply", "-f", "-")
	b.until("the event is shown as text", `document.querySelector('#rows').textContent.includes("<img src=x onerror=")`)
	text := b.eval(`document.querySelector('#rows').textContent`)
	contains(t, "the text", text, hostile, "\ufffd\ufffd[31m")
	n := b.eval(`document.querySelectorAll('#rows img, #rows script').length + document.title`)
	if !strings.HasPrefix(n, "0(2)") {
		t.Errorf("the hostile text was read as HTML: %s", n)
	}

	b.eval(`document.querySelector('#list').focus()`)
	for range 2 {
		b.key("ArrowDown")
	}
	b.key("Enter")
	b.until("details of the second row", `document.querySelector('#detail h2')?.innerText == 'pod huge' &&
		document.querySelector('#detail .chart') && !document.querySelector('#detail').hidden`)
	b.picture("details")
	b.key("Escape")
	b.until("they are closed", `document.querySelector('#detail').hidden`)
	b.eval(`(() => { const f = document.querySelector('#text'); f.value = 'works';
		f.dispatchEvent(new Event('input', {bubbles: true})); })()`)
	b.until("the filter leaves one", `document.querySelectorAll('#rows .row').length == 1`)
	b.eval(`(() => { const f = document.querySelector('#text'); f.value = '';
		f.dispatchEvent(new Event('input', {bubbles: true})); })()`)

	c.wait(t, "pod/server", "condition=Ready")
	res, err := http.Post("http://127.77.9.7:28123/waiting?n=7", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	b.eval(`document.querySelector('#tab-inference').click()`)
	b.until("the queue of the server", `[...document.querySelectorAll('#pools td')].map((d) => d.innerText)
		.join(' ').startsWith('server 7 ')`)
	b.picture("inference")
	b.eval(`document.querySelector('#tab-pods').click()`)
	for _, theme := range []string{"light", "dark"} {
		b.look(1280, 800, theme)
		b.until("rows", `document.querySelectorAll('#rows .row').length == 4`)
		b.picture(theme)
		b.look(390, 844, theme)
		b.until("nothing is wider than the window", `document.documentElement.scrollWidth <= 390 &&
			document.querySelectorAll('#rows .row').length > 0`)
		b.picture(theme + "-narrow")
	}

	b.look(1280, 800, "light")
	c.carob(t, "down")
	b.until("carob is gone", `!document.querySelector('#banner').hidden &&
		document.querySelector('#banner').innerText.includes('has not answered since') &&
		document.querySelectorAll('#rows .row').length == 4`)
	b.picture("down")
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	b.until("carob is back", `document.querySelector('#banner').hidden &&
		document.querySelector('#link').innerText.startsWith('connected again')`)
	c.kubectl(t, "delete", "pod/works", "--grace-period=0")
	b.until("changes arrive again", `document.querySelectorAll('#rows .row').length == 3`)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		t.Errorf("the browser reports: %s", p)
	}
}

// dashboard runs `carob dashboard`, and returns the address that it prints.
func dashboard(t *testing.T, c *cluster) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), carobBin, "dashboard", "--data-dir", c.DataDir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // the context of the test is done only now
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("carob dashboard: %v", err)
		}
	})
	if err != nil {
		t.Fatalf("carob dashboard printed %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}
