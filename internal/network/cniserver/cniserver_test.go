package cniserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"carob/internal/base/cniapi"
	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
)

// plug is a network that records what it is called with.
type plug struct {
	mu       sync.Mutex
	attached map[string]network.Pod
	fail     error
	hold     chan struct{} // an Attach waits for it; nil: it does not
	entered  chan struct{}
	given    chan error // what ended the wait
	collects int
}

func (p *plug) Attach(ctx context.Context, pod network.Pod) (network.Attachment, error) {
	if p.hold != nil {
		p.entered <- struct{}{}
		select {
		case <-p.hold:
		case <-ctx.Done():
			p.given <- ctx.Err()
			return network.Attachment{}, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return network.Attachment{}, p.fail
	}
	p.attached[pod.SandboxID] = pod
	return network.Attachment{NetNS: pod.NetNS}, nil
}

func (p *plug) Detach(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.attached, id)
	return p.fail
}

func (p *plug) Ready(context.Context) error { return p.fail }
func (p *plug) Sweep(context.Context, map[string]bool) error {
	return errors.New("not for this server")
}
func (p *plug) Collect(context.Context) error { p.collects++; return p.fail }

func (p *plug) Find(id string) (network.Device, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.attached[id]
	return network.Device{IPs: []netip.Addr{netip.MustParseAddr("10.88.0.7")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.88.0.1")}, MAC: "0a:58:00:00:00:01"}, ok
}

// start serves p and returns a client.
func start(t *testing.T, p *plug) (send func(context.Context, any) (cniapi.Reply, error)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(socket, nil, 0o644); err != nil { // of a carob that was killed
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, Config{Network: p, Socket: socket,
			Labels: func(uid string) map[string]string { return map[string]string{"of": uid} }})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	testwait.For(t, "the socket is for root only", func() bool {
		st, err := os.Stat(socket)
		return err == nil && st.Mode().Type() == os.ModeSocket && st.Mode().Perm() == 0o600
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return func(ctx context.Context, body any) (cniapi.Reply, error) {
		var reply cniapi.Reply
		b, ok := body.([]byte)
		if !ok {
			var err error
			if b, err = json.Marshal(body); err != nil {
				return reply, err
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://carob"+cniapi.Path, bytes.NewReader(b))
		if err != nil {
			return reply, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return reply, err
		}
		defer resp.Body.Close()
		return reply, json.NewDecoder(resp.Body).Decode(&reply)
	}
}

// newNS is a network namespace that ends with the test.
func newNS(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	path := filepath.Join(t.TempDir(), "ns")
	if err := netns.DoNew(func() error { return netns.Pin(netns.Current, path) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Unpin(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestRequests(t *testing.T) {
	p := &plug{attached: map[string]network.Pod{}}
	send := start(t, p)
	add := cniapi.Request{Command: "ADD", Container: "c1", NetNS: newNS(t), Device: "eth0",
		Args:  cniapi.Args{Namespace: "n", Name: "p", UID: "u"},
		Ports: []cniapi.PortMapping{{HostPort: 80, ContainerPort: 8080, Protocol: "TCP"}}}
	call := func(r cniapi.Request, code uint) cniapi.Reply {
		t.Helper()
		reply, err := send(t.Context(), r)
		got := uint(0)
		if reply.Error != nil {
			got = reply.Error.Code
		}
		if err != nil || got != code {
			t.Errorf("%s: %+v, %v, want code %d", r.Command, reply.Error, err, code)
		}
		return reply
	}
	for range 2 { // a repeated request has the same result
		if r := call(add, 0); len(r.IPs) != 1 || r.IPs[0].String() != "10.88.0.7" || len(r.Gateways) != 1 {
			t.Errorf("%+v", r)
		}
	}
	pod, ok := p.attached["cni-c1"]
	if !ok || !pod.External || pod.UID != "u" || pod.Labels["of"] != "u" || len(pod.Ports) != 1 ||
		pod.Ports[0].Protocol != "tcp" {
		t.Errorf("attached %+v", p.attached)
	}
	check := add
	check.Command, check.IPs = "CHECK", []netip.Addr{netip.MustParseAddr("10.88.0.7")}
	call(check, 0)
	check.IPs = []netip.Addr{netip.MustParseAddr("10.88.0.8")}
	call(check, cniapi.CodeFailed)
	for range 2 { // an unknown container is no error
		call(cniapi.Request{Command: "DEL", Container: "c1", Device: "eth0"}, 0)
	}
	call(check, cniapi.CodeUnknownContainer)
	call(cniapi.Request{Command: "GC"}, 0)
	call(cniapi.Request{Command: "STATUS"}, 0)
	if len(p.attached) != 0 || p.collects != 1 {
		t.Errorf("%v, collected %d times", p.attached, p.collects)
	}
	p.fail = errkind.Errorf(errkind.Exhausted, "no address is free")
	call(add, cniapi.CodeTryAgain)
	call(cniapi.Request{Command: "STATUS"}, cniapi.CodeNotAvailable)
}

// A namespace must be one of the network, and not the host's; broken and large requests are refused.
func TestHostileRequests(t *testing.T) {
	p := &plug{attached: map[string]network.Pod{}}
	send := start(t, p)
	for path, want := range map[string]string{
		"/proc/self/ns/net": "the network namespace of the host", "/etc/passwd": "not a namespace",
		"/no/such/file": "no such file", "/proc": "not a namespace",
	} {
		reply, err := send(t.Context(), cniapi.Request{Command: "ADD", Container: "c", NetNS: path, Device: "eth0"})
		if err != nil || reply.Error == nil || reply.Error.Code != cniapi.CodeBadEnvironment ||
			!strings.Contains(reply.Error.Msg, want) {
			t.Errorf("%s: %+v, %v", path, reply.Error, err)
		}
	}
	for _, body := range [][]byte{nil, []byte("{"), []byte(`{"Command":7}`),
		[]byte(`{"Command":"` + strings.Repeat("A", cniapi.MaxBytes) + `"}`)} {
		reply, err := send(t.Context(), body)
		if err != nil || reply.Error == nil || reply.Error.Code != cniapi.CodeBadJSON {
			t.Errorf("%.20q: %+v, %v", body, reply.Error, err)
		}
	}
	if len(p.attached) != 0 {
		t.Errorf("attached %v", p.attached)
	}
}

// A request ends when its client is gone, also while the network waits.
func TestClientGivesUp(t *testing.T) {
	p := &plug{attached: map[string]network.Pod{}, hold: make(chan struct{}), entered: make(chan struct{}),
		given: make(chan error, 1)}
	send := start(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r := cniapi.Request{Command: "ADD", Container: "c", NetNS: newNS(t), Device: "eth0"}
	go func() {
		_, err := send(ctx, r)
		ended <- err
	}()
	<-p.entered
	cancel()
	if err := <-ended; err == nil {
		t.Error("an answer after the client gave up")
	}
	if err := <-p.given; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
