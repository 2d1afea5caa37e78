package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
)

// echo answers exec with its command and its input, and exits with code 3.
type echo struct{}

func (echo) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan criremote.TerminalSize) error {
	fmt.Fprintf(out, "%s %s ", id, strings.Join(cmd, " "))
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	return exec.CodeExitError{Err: errors.New("exit status 3"), Code: 3}
}

func (echo) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool,
	<-chan criremote.TerminalSize) error {
	return nil
}

func (echo) PortForward(context.Context, string, int32, io.ReadWriteCloser) error { return nil }

func start(t *testing.T) *Server { t.Helper(); return startWith(t, echo{}) }

func startWith(t *testing.T, rt Runtime) *Server {
	t.Helper()
	s, err := New(rt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestExec(t *testing.T) {
	s := start(t)
	resp, err := s.GetExec(&cri.ExecRequest{ContainerId: "c1", Cmd: []string{"cat", "-"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(resp.Url)
	if err != nil || u.Hostname() != "127.0.0.1" {
		t.Fatalf("%s: %v", resp.Url, err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("input"), Stdout: &out})
	var code clientexec.CodeExitError
	if !errors.As(err, &code) || code.Code != 3 {
		t.Errorf("ended with %v", err)
	}
	if out.String() != "c1 cat - input" {
		t.Errorf("got %q", out.String())
	}
	if again, err := http.Get(resp.Url); err != nil || again.StatusCode != http.StatusNotFound {
		t.Errorf("a used URL answers %v, %v", again, err)
	}
}

func TestURLsAreSecret(t *testing.T) {
	s := start(t)
	resp, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "p"})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(resp.Url)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(u.Path, "/")
	if len(parts) != 4 || len(parts[1]) < 20 {
		t.Fatalf("path %q", u.Path)
	}
	u.Path = "/" + strings.Join(parts[2:], "/") // the token without the secret
	if got, err := http.Get(u.String()); err != nil || got.StatusCode != http.StatusNotFound {
		t.Errorf("%s: %v, %v", u, got, err)
	}
}
