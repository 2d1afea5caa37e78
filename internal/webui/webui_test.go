package webui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"carob/internal/core/explain"
)

// fakeAPI is an API server with a few pods of a namespace, that can be forbidden, be gone, and come back.
type fakeAPI struct {
	mu        sync.Mutex
	pods      []*corev1.Pod
	forbidden bool          // everything but pods
	gone      bool          // connections are refused
	end       chan struct{} // closed: open watches end
	cut       func()        // closes connections
	watches   chan chan any // of pods, when they begin
	timeline  []string      // lines
}

func newFakeAPI(pods ...*corev1.Pod) *fakeAPI {
	return &fakeAPI{pods: pods, end: make(chan struct{}), watches: make(chan chan any, 100)}
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	forbidden, end, pods, timeline := f.forbidden, f.end, f.pods, f.timeline
	f.mu.Unlock()
	ofPods := strings.HasSuffix(r.URL.Path, "/pods")
	answer := func(code int, o any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(o)
		_ = http.NewResponseController(w).Flush()
	}
	failure := func(code int, reason metav1.StatusReason, message string) {
		answer(code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Code: int32(code), Reason: reason, Message: message})
	}
	q := r.URL.Query()
	switch {
	case forbidden && !ofPods:
		failure(http.StatusForbidden, metav1.StatusReasonForbidden, "no right")
	case strings.Contains(r.URL.Path, "/inferencepools"):
		failure(http.StatusNotFound, metav1.StatusReasonNotFound, "no such kind")
	case strings.HasSuffix(r.URL.Path, "/proxy/timeline/follow"):
		for _, line := range timeline {
			fmt.Fprintln(w, line)
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-end:
		}
	case strings.Contains(r.URL.Path, "/proxy/"):
		failure(http.StatusNotFound, metav1.StatusReasonNotFound, "no gateway")
	case q.Get("watch") == "":
		list := &metav1.List{TypeMeta: metav1.TypeMeta{Kind: "List", APIVersion: "v1"}}
		list.ResourceVersion = "1"
		if ofPods {
			list.TypeMeta = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}
			for _, p := range pods {
				list.Items = append(list.Items, runtime.RawExtension{Object: p})
			}
		}
		answer(http.StatusOK, list)
	case q.Get("sendInitialEvents") != "":
		failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "lists only")
	default:
		changes := make(chan any, 10)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		if ofPods {
			f.watches <- changes
		}
		for {
			select {
			case <-r.Context().Done():
				return
			case <-end:
				return
			case o := <-changes:
				_ = json.NewEncoder(w).Encode(o)
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
}

// stop ends all connections, and refuses others until start.
func (f *fakeAPI) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	close(f.end)
	f.end = make(chan struct{})
}

func (f *fakeAPI) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = false
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-" + "1", ResourceVersion: "1",
			CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func unschedulable(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonUnschedulable, Message: message}}
	}
}

// serve runs a dashboard for an API server, and returns its address and its server.
func serve(t *testing.T, f *fakeAPI, namespace string) (base string, s *Server) {
	t.Helper()
	api := httptest.NewServer(f)
	t.Cleanup(api.Close)
	f.cut = api.CloseClientConnections
	config := &rest.Config{Host: api.URL, QPS: -1, Dial: func(ctx context.Context, network, address string) (net.Conn,
		error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.gone {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s = New(Config{Client: client, Dynamic: objects, Namespace: namespace, Cluster: api.URL, Version: "test",
		Explain: func(_ context.Context, kind, namespace, name string) (explain.Lines, error) {
			return explain.Lines{{Problem: true, Text: kind + " " + namespace + " " + name}}, nil
		},
		Chart: func(_ context.Context, _, name string) (any, error) {
			return nil, fmt.Errorf("no entries for %s", name)
		}})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		f.mu.Lock()
		close(f.end)
		f.end = make(chan struct{})
		f.mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), s
}

// client reads the stream of a page.
type client struct {
	t      *testing.T
	lines  *bufio.Reader
	rows   map[string]map[string]any
	status status
	resets int
}

func (c *client) next() {
	c.t.Helper()
	for {
		line, err := c.lines.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("the stream ended: %v", err)
		}
		if len(line) == 1 {
			continue
		}
		var m struct {
			Reset  bool             `json:"reset"`
			Rows   []map[string]any `json:"rows"`
			Gone   []string         `json:"gone"`
			Status *status          `json:"status"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			c.t.Fatalf("%q: %v", line, err)
		}
		if m.Reset {
			c.resets++
		}
		for _, r := range m.Rows {
			c.rows[r["id"].(string)] = r
		}
		for _, id := range m.Gone {
			delete(c.rows, id)
		}
		if m.Status != nil {
			c.status = *m.Status
		}
		return
	}
}

// until reads until something holds; the deadline of the whole test ends it otherwise.
func (c *client) until(holds func() bool) {
	c.t.Helper()
	for !holds() {
		c.next()
	}
}

func get(t *testing.T, s *Server, url string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.secret)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else if r.Header.Set(header[i], header[i+1]); header[i+1] == "" {
			r.Header.Del(header[i])
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func connect(t *testing.T, s *Server, base string) *client {
	t.Helper()
	res := get(t, s, base+"/api/stream")
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	return &client{t: t, lines: bufio.NewReader(res.Body), rows: map[string]map[string]any{}}
}

func TestAccess(t *testing.T) {
	base, s := serve(t, newFakeAPI(), "")
	own := strings.TrimPrefix(base, "http://")
	_, port, _ := strings.Cut(own, ":")
	if len(s.secret) < 20 {
		t.Errorf("the secret is %s", s.secret)
	}
	for _, c := range []struct {
		name, path string
		header     []string
		want       int
	}{
		{"the page needs no secret", "/", []string{"Authorization", ""}, 200},
		{"its parts need none", "/page.js", []string{"Authorization", ""}, 200},
		{"data", "/api/explain?kind=pod&name=x", nil, 200},
		{"data without the secret", "/api/explain?kind=pod&name=x", []string{"Authorization", ""}, 401},
		{"another secret", "/api/stream", []string{"Authorization", "Bearer " + strings.Repeat("A", len(s.secret))}, 401},
		{"a secret in the address", "/api/stream?secret=" + s.secret, []string{"Authorization", ""}, 401},
		{"a secret in a cookie", "/api/stream", []string{"Authorization", "", "Cookie", "secret=" + s.secret}, 401},
		{"another name for this address", "/", []string{"Host", "evil.example:" + port}, 421},
		{"another name, data", "/api/explain?kind=pod", []string{"Host", "evil.example:" + port}, 421},
		{"another port", "/", []string{"Host", "127.0.0.1:1"}, 421},
		{"no port", "/", []string{"Host", "127.0.0.1"}, 421},
		{"localhost", "/", []string{"Host", "localhost:" + port}, 200},
		{"another origin", "/api/explain?kind=pod", []string{"Origin", "https://evil.example"}, 403},
		{"the origin null", "/api/explain?kind=pod", []string{"Origin", "null"}, 403},
		{"its own origin", "/api/explain?kind=pod", []string{"Origin", "http://" + own}, 200},
		{"another site", "/api/explain?kind=pod", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"another port of this site", "/api/explain?kind=pod", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"a link on another site", "/", []string{"Sec-Fetch-Site", "cross-site"}, 200},
		{"no file of the machine", "/../../etc/passwd", nil, 404},
		{"no list of files", "/static/", nil, 404},
	} {
		res := get(t, s, base+c.path, c.header...)
		if res.StatusCode != c.want {
			t.Errorf("%s: %s", c.name, res.Status)
		}
		for header, want := range map[string]string{"X-Frame-Options": "DENY", "Cache-Control": "no-store",
			"X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": ""} {
			if got := res.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q", c.name, header, got)
			}
		}
		csp := res.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self';") ||
			!strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: the policy is %q", c.name, csp)
		}
	}
	res, err := http.Post(base+"/api/explain?kind=pod", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", res.Status)
	}
}

func TestStreamsHaveNoTimeLimit(t *testing.T) {
	if h := New(Config{}).server(t.Context()); h.ReadTimeout != 0 || h.WriteTimeout != 0 || h.ReadHeaderTimeout == 0 {
		t.Errorf("limits: read %v, write %v, header %v", h.ReadTimeout, h.WriteTimeout, h.ReadHeaderTimeout)
	}
}

func TestPagesAreLimited(t *testing.T) {
	base, s := serve(t, newFakeAPI(), "")
	for range mostPages {
		connect(t, s, base)
	}
	if res := get(t, s, base+"/api/stream"); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one page more: %s", res.Status)
	}
}

func TestRowsAreLive(t *testing.T) {
	f := newFakeAPI(pod("web", unschedulable("0/1 nodes are available")))
	base, s := serve(t, f, "")
	c := connect(t, s, base)
	c.until(func() bool { return c.rows["pod/shop/web"] != nil })
	r := c.rows["pod/shop/web"]
	if r["class"] != classBad || !strings.HasPrefix(r["says"].(string), "is not scheduled: 0/1 nodes are available") {
		t.Errorf("%v", r)
	}
	changes := <-f.watches
	changes <- map[string]any{"type": "ADDED", "object": pod("new")}
	c.until(func() bool { return c.rows["pod/shop/new"] != nil })
	changes <- map[string]any{"type": "DELETED", "object": pod("web")}
	c.until(func() bool { return c.rows["pod/shop/web"] == nil })
	if c.resets != 1 {
		t.Errorf("%d resets", c.resets)
	}
}

// A restart of carob: the page shows that it is gone, and since when, keeps its content, and goes on by itself.
func TestReconnects(t *testing.T) {
	f := newFakeAPI(pod("web"))
	base, s := serve(t, f, "")
	c := connect(t, s, base)
	c.until(func() bool { return c.rows["pod/shop/web"] != nil && len(c.status.Loading) == 0 })
	<-f.watches
	f.stop()
	f.cut()
	c.until(func() bool { return c.status.Lost != "" })
	if c.status.Since == 0 || c.rows["pod/shop/web"] == nil {
		t.Errorf("while the API server is gone: %+v, %d rows", c.status, len(c.rows))
	}
	f.mu.Lock()
	f.pods = []*corev1.Pod{pod("web"), pod("later")}
	f.mu.Unlock()
	f.start()
	c.until(func() bool { return c.status.Lost == "" })
	for { // whether it lists again or watches on: the change comes
		select {
		case changes := <-f.watches:
			changes <- map[string]any{"type": "ADDED", "object": pod("later")}
			c.until(func() bool { return c.rows["pod/shop/later"] != nil })
			return
		case <-t.Context().Done():
			t.Fatal("pods are not watched again")
		}
	}
}

// A user with few rights sees what the rights allow, and what is missing.
func TestForbidden(t *testing.T) {
	f := newFakeAPI(pod("web", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
	f.forbidden = true
	base, s := serve(t, f, "shop")
	c := connect(t, s, base)
	c.until(func() bool { return c.rows["pod/shop/web"] != nil && len(c.status.Notes) >= 7 })
	notes := strings.Join(c.status.Notes, "\n")
	for _, want := range []string{"you may not list and watch nodes",
		"you may not list and watch deployments in namespace shop",
		"you may not get nodes/proxy of node n1: lanes show the times in the pods' statuses"} {
		c.until(func() bool { return strings.Contains(strings.Join(c.status.Notes, "\n"), want) })
	}
	if c.status.Lost != "" || strings.Contains(notes, "watch pods") {
		t.Errorf("%+v", c.status)
	}
	if exact := c.rows["pod/shop/web"]["exact"]; exact != false {
		t.Errorf("the stages are said to be exact: %v", exact)
	}
}

// Stages are those of the node's timeline.
func TestTimeline(t *testing.T) {
	f := newFakeAPI(pod("web", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
	entry := func(second int, rest string) string {
		return fmt.Sprintf(`{"time":"2100-01-01T00:00:%02dZ","namespace":"shop","pod":"web","uid":"uid-1",%s}`, second, rest)
	}
	f.timeline = []string{entry(1, `"kind":"schedule","key":"n1"`), `no JSON`, `{"pod":7}`, "",
		entry(2, `"kind":"action-begin","key":"pull/c","object":"c"`), entry(4, `"kind":"action-end","key":"pull/c"`)}
	base, s := serve(t, f, "")
	c := connect(t, s, base)
	c.until(func() bool {
		r := c.rows["pod/shop/web"]
		return r != nil && r["exact"] == true && strings.Count(fmt.Sprint(r["stages"]), "[") >= 5
	})
	got := fmt.Sprint(c.rows["pod/shop/web"]["stages"])
	if !strings.Contains(got, "pull") || !strings.HasSuffix(got, "prepare]]") {
		t.Errorf("%s", got)
	}
}

// TestNodesThatLeft: nothing is said about a node any more when it has left the cluster.
func TestNodesThatLeft(t *testing.T) {
	web := pod("web", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	f := newFakeAPI(web)
	f.forbidden = true
	base, s := serve(t, f, "")
	c := connect(t, s, base)
	mentions := func() bool { return strings.Contains(fmt.Sprint(c.status.Notes), "of node n1") }
	c.until(mentions)
	change := <-f.watches
	change <- map[string]any{"type": "DELETED", "object": web}
	c.until(func() bool { return !mentions() })
}

func TestDetails(t *testing.T) {
	base, s := serve(t, newFakeAPI(), "")
	res := get(t, s, base+"/api/explain?kind=pod&namespace=shop&name=web")
	var lines explain.Lines
	err := json.NewDecoder(res.Body).Decode(&lines)
	if err != nil || len(lines) != 1 || lines[0].Text != "pod shop web" {
		t.Errorf("%v %v", lines, err)
	}
	if res := get(t, s, base+"/api/chart?namespace=shop&name=web"); res.StatusCode != http.StatusBadGateway {
		t.Errorf("a failure: %s", res.Status)
	}
}

// The rows of very many objects are sent in parts, and above a limit are left out, which is said.
func TestManyPods(t *testing.T) {
	s := newState()
	list := make([]metav1.Object, mostObjects+3)
	for i := range list {
		list[i] = pod(fmt.Sprintf("p%d", i))
	}
	s.replace("pod", list)
	p := &page{rows: map[string]bool{}, status: true, wake: make(chan struct{}, 1)}
	if !s.join(p) {
		t.Fatal("no room")
	}
	sum := 0
	for len(p.rows) > 0 {
		m := s.next(p, &Config{})
		if len(m.Rows) > mostRows {
			t.Errorf("%d rows in a message", len(m.Rows))
		}
		if m.Status != nil && (len(m.Status.Notes) != 1 || !strings.Contains(m.Status.Notes[0], "10000")) {
			t.Errorf("%v", m.Status.Notes)
		}
		sum += len(m.Rows)
	}
	if sum != mostObjects {
		t.Errorf("%d rows", sum)
	}
	s.replace("pod", nil) // all are gone
	s.mu.Lock()
	s.render(time.Now())
	s.mu.Unlock()
	if len(s.shown) != 0 || len(s.owned) != 0 || len(s.onNode) != 0 || len(s.lanes) != 0 {
		t.Errorf("left: %d rows, %d owners, %d nodes, %d lanes", len(s.shown), len(s.owned), len(s.onNode), len(s.lanes))
	}
}
