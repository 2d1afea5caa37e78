package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The node agent returns errors as plain text through nodes/proxy; a user sees only that text.
func TestAgentErrorsArePlainText(t *testing.T) {
	for code, words := range map[int]string{
		http.StatusNotFound:       "there is no image nosuch:1",
		http.StatusNotImplemented: "import the image there",
		http.StatusBadRequest:     "no image named",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			http.Error(w, words, code)
		}))
		c, err := rest.RESTClientFor(&rest.Config{Host: s.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
			GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := plain(c.Delete().AbsPath("/x").Do(t.Context()).Error()); err == nil || err.Error() != words {
			t.Errorf("%d: got %v, want %q", code, err, words)
		}
		body, err := c.Post().AbsPath("/x").Body(strings.NewReader("x")).Stream(t.Context())
		if err == nil {
			_, _ = io.Copy(io.Discard, body)
			t.Fatalf("%d: no error", code)
		}
		if got := plain(err).Error(); got != words {
			t.Errorf("%d: stream: got %q, want %q", code, got, words)
		}
		s.Close()
	}
	if plain(nil) != nil {
		t.Error("an unexpected error")
	}
}

// A file that cannot be read to its end is named, not the request that sends it.
func TestUnreadableArchiveIsNamed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer s.Close()
	c, err := rest.RESTClientFor(&rest.Config{Host: s.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = c.Post().AbsPath("/x").Body(io.Reader(f)).Stream(t.Context())
	if got, want := plain(err), "read "+dir+": is a directory"; got == nil || got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
	r := &root{}
	if err := r.importFile(t.Context(), "", dir); err == nil || err.Error() != "import: "+dir+" is a directory" {
		t.Errorf("import of a directory: %v", err)
	}
}

// A response is read to its end, also after its last message: the server would log an aborted request.
func TestImageResponsesAreReadToTheEnd(t *testing.T) {
	ended := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"done": ["localhost/a:1"]}`+"\n")
		for range 1 << 10 {
			if err == nil {
				_, err = io.WriteString(w, strings.Repeat("\n", 16<<10)) // more than all buffers hold
			}
		}
		ended <- err
	}))
	defer s.Close()
	c, err := rest.RESTClientFor(&rest.Config{Host: s.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	done, err := (&root{}).followImage(t.Context(), c.Post().AbsPath("/x"), false)
	if err != nil || !slices.Equal(done, []string{"localhost/a:1"}) {
		t.Errorf("%q, %v", done, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the server: %v", err)
	}
}

// A server may answer nothing, or never end its answer, and an archive may never end: the end of the command's context
// (Ctrl-C) ends it, with an error that says so. What the server has reported as done is done, though it does not end
// its answer.
func TestImageStreamsThatDoNotEnd(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		endless      bool // the archive
		done         []string
	}{
		{"no answer", "", false, nil},
		{"no end", `{"message": "pulling"}` + "\n", false, nil},
		{"an unfinished message", `{"message": "pul`, false, nil},
		{"an archive without an end", "", true, nil},
		{"no end after the last message", `{"done": ["localhost/a:1"]}` + "\n", false, []string{"localhost/a:1"}},
	} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, HTTP/%d", c.name, version), func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				returned := make(chan struct{}) // of the command
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != version {
						t.Errorf("the protocol is %s", r.Proto)
					}
					_, _ = r.Body.Read(make([]byte, 3))
					if c.answer != "" {
						_, _ = io.WriteString(w, c.answer)
						w.(http.Flusher).Flush() //nolint:forcetypeassert // both versions have it
					}
					if c.done == nil {
						interrupt()
					}
					<-returned
				}))
				s.EnableHTTP2 = version == 2
				s.StartTLS()
				defer s.Close()
				defer close(returned)
				client, err := rest.RESTClientFor(&rest.Config{Host: s.URL, APIPath: "/api",
					TLSClientConfig: rest.TLSClientConfig{Insecure: true, NextProtos: map[int][]string{1: {"http/1.1"},
						2: {"h2"}}[version]},
					ContentConfig: rest.ContentConfig{GroupVersion: &schema.GroupVersion{Version: "v1"},
						NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
				if err != nil {
					t.Fatal(err)
				}
				archive, rest := io.Pipe()
				defer rest.Close()
				go func() {
					_, _ = rest.Write(make([]byte, 64<<10)) // more than is buffered
					if !c.endless {
						rest.Close()
					}
				}()
				done, err := (&root{out: io.Discard}).followImage(ctx, client.Post().AbsPath("/x").
					Body(whileRunning(ctx, archive)), true)
				if !slices.Equal(done, c.done) || (err == nil) != (c.done != nil) {
					t.Errorf("%q, %v", done, err)
				}
				if err != nil && (!errors.Is(err, context.Canceled) || exitCode(err) != exitFailed ||
					message(err) != "it was stopped") {
					t.Errorf("%d, %s", exitCode(err), message(err))
				}
			})
		}
	}
}

// A file on a disk is sent as it is: client-go sends it again from its beginning if the server was busy.
func TestArchiveOnDisk(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "archive")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := whileRunning(t.Context(), f); got != io.Reader(f) {
		t.Errorf("got a %T", got)
	}
}
