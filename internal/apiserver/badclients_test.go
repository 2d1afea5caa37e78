package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// watches is how many are opened at once; releases are tested with 10000.
const watches = "WATCHES"

// dial opens a separate connection as an administrator, with HTTP/1.1 and a small window.
func (r *running) dial(t *testing.T) *tls.Conn {
	t.Helper()
	pair, err := tls.X509KeyPair(r.pki.Admin.Pair().CertPEM, r.pki.Admin.Pair().KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", r.cfg.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, &tls.Config{RootCAs: r.pki.Pool, ServerName: "127.0.0.1",
		Certificates: []tls.Certificate{pair}})
	t.Cleanup(func() { c.Close() })
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// send writes a request; its answer may stay unread.
func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// heap returns the memory in use, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what pools keep survives the first one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// Clients that open watches and never read do not block other clients, and use a limited amount of memory, whether
// a cache or the engine serves them.
func TestWatchesNeverRead(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	// A version from before resource quotas had a cache: the engine serves the watches from there.
	first, err := c.CoreV1().ResourceQuotas("default").Create(ctx,
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		for _, path := range []string{"/api/v1/configmaps?watch=1",
			"/api/v1/resourcequotas?watch=1&resourceVersion=" + first.ResourceVersion, "/api/v1/events?watch=1"} {
			send(t, r.dial(t), "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		}
	}
	reader, err := r.remote(t, r.pki.Admin.Pair()).CoreV1().ConfigMaps("default").Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=m"})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Stop()
	const writes, size = 500, 10_000
	before := heap()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range writes {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d","x":%q}}}`, i, strings.Repeat("x", size))
			if _, err := c.CoreV1().ResourceQuotas("default").Patch(ctx, "q", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Go(func() {
		for i := range writes {
			patch := fmt.Sprintf(`{"data":{"n":"%d","x":%q}}`, i, strings.Repeat("x", size))
			if _, err := c.CoreV1().ConfigMaps("default").Patch(ctx, "m", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for e := range reader.ResultChan() {
		m, ok := e.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("%v %v", e.Type, e.Object)
		}
		if m.Data["n"] == fmt.Sprint(writes-1) {
			break
		}
	}
	wg.Wait()
	grown := heap() - before
	t.Logf("60 watches that never read, %d events of %d bytes for each: %d MB", writes, size, grown>>20)
	if grown > 200<<20 {
		t.Errorf("%d MB more memory", grown>>20)
	}
}

// Many idle watches use little memory each, other clients are served, and the memory is freed.
func TestManyWatches(t *testing.T) {
	n := 500
	if x, err := strconv.Atoi(os.Getenv(watches)); err == nil {
		n = x
	}
	r := start(t, t.TempDir())
	c := r.remote(t, r.pki.Admin.Pair())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	before := heap()
	var open sync.WaitGroup
	results := make(chan error, n)
	for i := range n {
		w, err := c.CoreV1().ConfigMaps("default").Watch(ctx,
			metav1.ListOptions{FieldSelector: fmt.Sprintf("metadata.name=m%d", i%10)})
		if err != nil {
			t.Fatal(err)
		}
		open.Go(func() {
			defer w.Stop()
			e, ok := <-w.ResultChan()
			if m, is := e.Object.(*corev1.ConfigMap); !ok || !is || m.Name != fmt.Sprintf("m%d", i%10) {
				results <- fmt.Errorf("watch %d: %v %v", i, e.Type, e.Object)
				return
			}
			results <- nil
		})
	}
	each := (heap() - before) / int64(n)
	t.Logf("%d watches: %d KB each, both ends of the connection together", n, each>>10)
	if each > 200<<10 {
		t.Errorf("a watch costs %d KB", each>>10)
	}
	for i := range 10 {
		if _, err := c.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	open.Wait()
}

// Clients that start a request and do not continue do not block others; the watch of a client that closes
// its sending side ends.
func TestSlowClients(t *testing.T) {
	r := start(t, t.TempDir())
	c := r.remote(t, r.pki.Admin.Pair())
	for i := range 100 {
		raw, err := net.Dial("tcp", r.cfg.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		switch i % 4 {
		case 0: // no handshake
			send(t, raw, "\x16\x03")
		case 1: // half a header
			send(t, r.dial(t), "GET /api/v1/namespaces HTTP/1.1\r\nHost: h\r\nX-Slow: ")
		case 2: // half a body
			send(t, r.dial(t),
				"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		case 3: // half a chunk
			send(t, r.dial(t),
				"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{")
		}
	}
	for range 20 {
		if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A body that ends early is an error of the client.
	short := r.dial(t)
	send(t, short,
		"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	if err := short.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(short), nil); err == nil && resp.StatusCode < 400 {
		t.Errorf("half a body: %s", resp.Status)
	}
	// More headers than anybody needs.
	big := r.dial(t)
	go func() {
		_, _ = io.WriteString(big, "GET /version HTTP/1.1\r\nHost: h\r\nX-Big: "+strings.Repeat("x", 2*maxHeader)+
			"\r\n\r\n")
	}()
	if resp := answer(t, big); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("2 MiB of header: %s", resp.Status)
	}
	// A watch ends when its client closes the sending side.
	half := r.dial(t)
	send(t, half, "GET /api/v1/configmaps?watch=1&timeoutSeconds=3000 HTTP/1.1\r\nHost: h\r\n\r\n")
	resp := answer(t, half)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s", resp.Status)
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := half.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, resp.Body)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the watch of a client that has gone lasts")
	}
}
