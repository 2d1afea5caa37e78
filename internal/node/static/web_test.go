package static

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// web is a server without a network.
type web struct {
	mu     sync.Mutex
	status int
	text   string
	err    error
	header http.Header // of the last request
}

func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.header = r.Header; w.err != nil {
		return nil, w.err
	}
	return &http.Response{StatusCode: w.status, Status: fmt.Sprint(w.status), Request: r,
		Body: io.NopCloser(strings.NewReader(w.text))}, nil
}

func (w *web) respond(status int, text string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status, w.text, w.err = status, text, err
}

const podList = `{"kind":"PodList","apiVersion":"v1","items":[
{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}},
{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b","namespace":"n"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`

// S14.10–S14.14: the pods of a URL run; an invalid response changes nothing; after a restart the last valid one counts
// until there is another.
func TestWebSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &web{}
		w.respond(200, manifest, nil)
		var log []string
		cache := filepath.Join(t.TempDir(), "cache")
		begin := func() (end func()) {
			s := NewWebSource(WebConfig{URL: "http://pods.example.com/x", Header: map[string][]string{"A": {"b", "c"}},
				Node: "N1", Cache: cache, Complete: accept, Wanted: func(pods []*corev1.Pod) {
					var names []string
					for _, p := range pods {
						names = append(names, p.Namespace+"/"+p.Name)
						if p.Annotations[annotationSource] != "http" || len(p.Spec.Tolerations) != 0 ||
							len(p.UID) != 32 {
							t.Errorf("%+v", p)
						}
					}
					log = append(log, strings.Join(names, " "))
				}})
			s.client.Transport = w
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := s.Run(ctx); err != nil {
					log = append(log, "error")
				}
			})
			return func() { cancel(); wg.Wait() }
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Join(log, "|"); got != strings.Join(want, "|") {
				t.Errorf("wanted %q, expected %q", log, want)
			}
			log = nil
		}
		end := begin()
		expect("default/web-n1")
		if got := w.header["A"]; len(got) != 2 {
			t.Errorf("header: %v", got)
		}
		time.Sleep(webPeriod)
		expect()
		for _, bad := range []string{"{", "kind: Service\napiVersion: v1\n",
			strings.Replace(podList, `"name":"a"`, `"x":1`, 1), strings.Repeat(" ", maxManifest+1), "null",
			"# later\n", "[]", `{"kind":"PodList","apiVersion":"v1","items":[null]}`} {
			w.respond(200, bad, nil)
			time.Sleep(webPeriod)
			expect()
		}
		w.respond(500, podList, nil)
		time.Sleep(webPeriod)
		expect()
		w.respond(200, podList, nil)
		time.Sleep(webPeriod)
		expect("default/a-n1 n/b-n1")
		end()

		w.respond(0, "", errors.New("nobody is there"))
		end = begin()
		expect("default/a-n1 n/b-n1")
		time.Sleep(webPeriod)
		expect()
		w.respond(200, podList, nil) // late, and nothing new
		time.Sleep(webPeriod)
		expect()
		w.respond(200, "", nil)
		time.Sleep(webPeriod)
		expect("")
		end()

		if err := os.WriteFile(cache, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.respond(0, "", errors.New("nobody is there"))
		end = begin()
		expect("error") // rather than to end the pods that run
		end()
	})
}

// TestWebSourceFullDisk: pods of the URL are applied although they cannot be stored, also at the start beside older
// stored ones, and are stored as soon as that is possible.
func TestWebSourceFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, dir := &web{}, filepath.Join(t.TempDir(), "missing") // a missing directory stands for the full disk
		cache := filepath.Join(dir, "cache")
		w.respond(200, manifest, nil)
		var got []string
		s := NewWebSource(WebConfig{URL: "http://pods.example.com/x", Node: "n1", Cache: cache, Complete: accept,
			Wanted: func(pods []*corev1.Pod) {
				for _, p := range pods {
					got = append(got, p.Name)
				}
			}})
		s.client.Transport = w
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if strings.Join(got, " ") != "web-n1" {
			t.Errorf("at the start with a full disk: %q", got)
		}
		w.respond(200, podList, nil)
		time.Sleep(webPeriod)
		synctest.Wait()
		if strings.Join(got, " ") != "web-n1 a-n1 b-n1" {
			t.Errorf("after a change with a full disk: %q", got)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(webPeriod)
		synctest.Wait()
		if text, err := os.ReadFile(cache); err != nil || string(text) != podList || len(got) != 3 {
			t.Errorf("with room on the disk: stored %q, %v; wanted %q", text, err, got)
		}
		cancel()
		wg.Wait()
	})
}
